// The task chain_sum: prompts such as `7+4+9=`, one token a character, and the verifier that reads what follows the last #.

const CHARACTERS = "0123456789+=;#?";
export const PAD = 0;
export const EOS = 1;
export const VOCABULARY = ["", "", ...CHARACTERS]; // the two special tokens are no text

export const encode = (text) => Array.from(text, (character) => VOCABULARY.indexOf(character));

export const decode = (tokens) => tokens.map((token) => VOCABULARY[token]).join("");

/** A problem by its prompt: `{id, prompt, answer}` of `7+4+9=`. */
export function problemOf(prompt) {
  const sum = prompt.slice(0, -1);
  const answer = sum.split("+").reduce((total, term) => total + Number(term), 0);
  return { id: `chain_sum-${sum}`, prompt, answer: String(answer) };
}

export function isCorrect(text, answer) {
  const after = text.lastIndexOf("#");
  const number = after < 0 ? null : text.slice(after + 1).match(/^\+?0*(\d+)$/);
  return number !== null && number[1] === answer;
}

export const writesSteps = (text) => /\d+\+\d+=\d+/.test(text);
