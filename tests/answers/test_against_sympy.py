"""sympy writes and rearranges expressions; the comparison must see through it, and through nothing else."""

import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from test_equivalence import same

X, Y = sympy.symbols("x y")
LEAVES = st.one_of(
    st.integers(-9, 9).map(sympy.Integer),
    st.builds(sympy.Rational, st.integers(-9, 9), st.integers(1, 9)),
    st.sampled_from([X, Y, sympy.pi, sympy.sqrt(2), sympy.sqrt(3)]),
)


def grow(parts: st.SearchStrategy[sympy.Expr]) -> st.SearchStrategy[sympy.Expr]:
    return st.one_of(
        st.builds(sympy.Add, parts, parts),
        st.builds(sympy.Mul, parts, parts),
        st.builds(sympy.Pow, parts, st.integers(2, 3).map(sympy.Integer)),
        st.builds(lambda part: 1 / (part**2 + 1), parts),
        st.builds(sympy.sin, parts),
    )


EXPRESSIONS = st.recursive(LEAVES, grow, max_leaves=6)
REARRANGED = st.sampled_from([lambda e: e, sympy.expand, sympy.factor, sympy.together, sympy.expand_trig])


@settings(max_examples=60, deadline=None)
@given(EXPRESSIONS, REARRANGED, st.sampled_from([sympy.Integer(1), sympy.Rational(1, 1000), X, -sympy.pi]))
def test_what_sympy_rearranges_or_spells_otherwise_is_the_same_answer_and_what_is_added_makes_another(
    expression, rearrange, addend
):
    latex = sympy.latex(expression)
    assert same(sympy.latex(rearrange(expression)), latex)
    assert same(sympy.sstr(expression), latex)
    assert not same(sympy.latex(sympy.expand(expression + addend)), latex)
