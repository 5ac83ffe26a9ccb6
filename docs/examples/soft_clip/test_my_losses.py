import torch
from my_losses import soft_clip


def test_it_has_the_gradient_of_reinforce_on_policy_and_none_far_away():
    logprobs = torch.tensor([-1.0, 9.0], requires_grad=True)
    soft_clip(logprobs, torch.tensor([-1.0, -1.0]), torch.tensor([2.0, 2.0]), width=0.2).sum().backward()
    assert logprobs.grad.tolist() == [-2, 0]
