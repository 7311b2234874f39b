"""Pictures of autograd graphs equal the graph that is there, and looking leaves nothing behind."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import Node, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from course_lib.display import backward, show_backward, show_graph
from course_lib.display.graph import NODES_SHOWN
from course_lib.display.layers import layout
from course_lib.display.nodes import is_leaf, operation, read_graph

SEEDS = range(6)


def leaf(*values: float) -> Tensor:
    return torch.tensor(values if len(values) > 1 else values[0], requires_grad=True)


class Scale(torch.autograd.Function):
    """A custom node with a tensor that it saves and a number that it does not."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.factor, None


class Refuses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, cotangent):
        raise ValueError("not today")


def edited(x: Tensor) -> Tensor:
    y = x + 1
    y[0].mul_(2)
    return y


def halves(x: Tensor) -> Tensor:
    left, right = x.unbind(1)[:2]
    return torch.stack([left, right, left * right], 1)


UNARY = [
    torch.sin,
    torch.exp,
    edited,
    halves,
    lambda x: Scale.apply(x, 3),
    lambda x: x.t().reshape(3, 2).t(),
    lambda x: x.view(6)[1:5].sum() * x,
    lambda x: x + 5,
]
BINARY = [torch.add, torch.mul, lambda a, b: torch.cat([a, b])[::2], lambda a, b: a @ b.t() @ a]


def random_dag(seed: int, operations: int = 9) -> tuple[Tensor, list[Tensor]]:
    """A scalar over a random DAG of operations on `(2, 3)` tensors, and its leaves."""
    choose, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    leaves = [torch.rand(2, 3, generator=generator).requires_grad_(i > 0) for i in range(4)]
    pool = list(leaves)
    for _ in range(operations):
        if choose.random() < 0.5:
            pool.append(choose.choice(UNARY)(choose.choice(pool)))
        else:
            pool.append(choose.choice(BINARY)(choose.choice(pool), choose.choice(pool)))
    return sum(x.mean() for x in pool if x.requires_grad), leaves[1:]


@pytest.fixture(params=SEEDS)
def dag(request) -> tuple[Tensor, list[Tensor]]:
    return random_dag(request.param, operations=3 + request.param % 4)


def walked(root: Node) -> dict[Node, tuple]:
    """Every node with its edges, by recursion."""
    found: dict[Node, tuple] = {}

    def visit(node):
        if node is not None and node not in found:
            found[node] = node.next_functions
            for target, _ in node.next_functions:
                visit(target)

    visit(root)
    return found


def written(text: str) -> dict[int, tuple[str, list[int | None]]]:
    """The graph that the text form tells of: each number with its operation and the numbers of its inputs."""
    nodes: dict[int, tuple[str, list[int | None]]] = {}
    for line in text.splitlines():
        if head := re.match(r"  (\d+) (\S+)", line):
            nodes[int(head[1])] = head[2], []
        elif edge := re.match(r"      input (\d+) (?:→ (\d+)|needs no gradient)", line):
            inputs = list(nodes.values())[-1][1]
            assert int(edge[1]) == len(inputs)
            inputs.append(int(edge[2]) if edge[2] else None)
    return nodes


def svg(html: str) -> ElementTree.Element:
    return ElementTree.fromstring(re.search(r"<svg.*?</svg>", html, re.DOTALL)[0])


def drawn(html: str) -> Counter:
    """How many boxes ("rect b"), arrows ("path", "polygon") and dashed ends ("path z") are in the picture."""
    return Counter(f"{element.tag} {element.get('class', '')}".strip() for element in svg(html).iter())


# ---- show_graph ----------------------------------------------------------------------------------------


def test_the_text_form_is_the_graph(dag):
    output, _ = dag
    nodes = written(whole(output).text)
    first = next(iter(nodes))
    seen, waiting = {first: output.grad_fn}, [first]
    while waiting:
        number = waiting.pop()
        name, inputs = nodes[number]
        node = seen[number]
        assert name == operation(node)
        assert [i is None for i in inputs] == [target is None for target, _ in node.next_functions]
        for i, (target, _) in zip(inputs, node.next_functions, strict=True):
            if i is not None and i not in seen:
                waiting.append(i)
            assert i is None or seen.setdefault(i, target) is target
    assert set(seen.values()) == set(walked(output.grad_fn))
    assert len(seen) == len(nodes)


def whole(output: Tensor):
    assert len(walked(output.grad_fn)) <= NODES_SHOWN, "the test's graph is larger than what is drawn"
    return show_graph(output)


def test_the_picture_has_a_box_for_every_node_and_an_arrow_for_every_edge(dag):
    output, _ = dag
    edges = [target for node_edges in walked(output.grad_fn).values() for target, _ in node_edges]
    counts = drawn(whole(output).html)
    assert counts["rect b"] == len(walked(output.grad_fn))
    assert counts["polygon"] == counts["path"] == sum(target is not None for target in edges)
    assert counts["path z"] == sum(target is None for target in edges)


def test_a_small_graph_in_words():
    x = leaf(2.0)
    z = x**3 + 5
    assert show_graph(z).text == (
        "graph of z: 3 nodes, 1 leaf\n"
        "  1 AddBackward0  [output z]\n"
        "      saved alpha: 1\n"
        "      input 0 → 2 PowBackward0\n"
        "      input 1 needs no gradient\n"
        "  2 PowBackward0\n"
        "      saved self: x = input 0, () float32\n"
        "      saved exponent: 3\n"
        "      input 0 → 3 AccumulateGrad leaf x\n"
        "  3 AccumulateGrad leaf x\n"
        "      () float32\n"
        "      .grad is None"
    )


def test_a_shared_subexpression_is_one_box():
    x = leaf(2.0)
    y = x.exp()
    assert drawn(show_graph(y * y).html)["rect b"] == 3


def test_several_outputs_share_a_picture():
    x = leaf(1.0, 2.0)
    a, b = x.exp(), x.sin()
    text = show_graph(a, b).text
    assert text.startswith("graph of a, b: 3 nodes, 1 leaf")
    assert "[output a]" in text and "[output b]" in text


def test_which_result_of_a_node_a_gradient_comes_back_to_is_said():
    x = leaf(1.0, 2.0)
    a, b = x.unbind()
    picture = show_graph(a * b)
    assert "makes a, b" in picture.text
    assert "input 1 → 2 UnbindBackward0, its output 1" in picture.text
    assert "which result" in picture.html


def test_what_is_saved_is_told_apart():
    data, w = torch.ones(2), leaf(1.0, 2.0)
    h = w * data
    text = show_graph(h * h + h.exp() * 2).text
    assert "saved other: data, (2,) float32" in text
    assert "saved self: h = input 0 and 1, (2,) float32" in text
    assert "saved result: the result, (2,) float32" in text
    assert "saved other: constant 2, () int64" in text


def test_a_negative_dim_has_its_sign():
    x = leaf(1.0, 2.0)
    assert "saved dim: (-1,)" in show_graph(x.sum(-1)).text


def test_the_leaf_says_whether_there_is_a_gradient():
    x = leaf(2.0)
    (x * 2).backward()
    y = x * 3
    assert ".grad is there" in show_graph(y).text


def test_a_freed_graph_says_so_and_is_drawn():
    x = leaf(2.0)
    y = x.exp()
    y.backward()
    assert "      saved tensors freed\n" in show_graph(y).text
    z = Scale.apply(leaf(2.0), 4)
    z.backward()
    assert "      saved tensors freed\n      saved ctx.factor: 4\n" in show_graph(z).text


def test_a_custom_function_shows_what_it_kept():
    x = leaf(2.0)
    text = show_graph(Scale.apply(x, 4)).text
    assert "ScaleBackward" in text
    assert "saved tensor 0: x = input 0, () float32" in text
    assert "saved ctx.factor: 4" in text


def test_an_object_on_ctx_is_shown_without_its_address():
    y = Scale.apply(leaf(2.0), 4)
    y.grad_fn.thing = object()
    assert "saved ctx.thing: an object of type object" in show_graph(y).text


def test_an_edit_in_place_after_saving_is_told():
    x = leaf(1.0, 2.0)
    y = x * 1
    z = y * y
    y.add_(1)
    assert "saved self: edited in place since it was saved; backward will refuse" in show_graph(z).text


def test_an_edit_through_a_view_is_a_node():
    x, y = leaf(2.0), torch.zeros(3)
    y[0] = x
    assert "CopySlices" in show_graph(y).text


def test_a_saved_tensor_hook_is_not_run():
    calls = []

    def unpack(x):
        calls.append(x)
        return x

    with saved_tensors_hooks(lambda x: x, unpack):
        y = leaf(2.0).exp()
    assert "packed by a saved-tensor hook" in show_graph(y).text
    assert not calls


def test_a_checkpointed_part_is_not_computed_again():
    calls = []

    def block(x):
        calls.append(1)
        return x.exp().sin()

    y = checkpoint(block, leaf(2.0), use_reentrant=False)
    assert "packed by a saved-tensor hook" in show_graph(y).text
    assert len(calls) == 1


def test_looking_leaves_everything_as_it_was(dag):
    output, leaves = dag
    rng = torch.get_rng_state()
    before = [(x._version, x.grad, x.requires_grad) for x in leaves], output._version
    show_graph(output)
    assert ([(x._version, x.grad, x.requires_grad) for x in leaves], output._version) == before
    assert torch.equal(torch.get_rng_state(), rng)
    output.backward()


def test_a_local_name_comes_before_a_global_one():
    assert "leaf X" in show_graph(Y).text
    local = X
    assert "leaf local" in show_graph(local * 2).text


def test_parameters_and_buffers_of_a_module_have_their_names():
    model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.BatchNorm1d(1))
    text = show_graph(model(torch.ones(3, 2))).text
    assert "AccumulateGrad leaf model.0.weight" in text
    assert "saved running_mean: model.1.running_mean, (1,) float32" in text


def test_given_names_come_first_and_are_escaped():
    x = leaf(2.0)
    picture = show_graph(x * 2, names={"<b>": x})
    assert "leaf <b>" in picture.text
    assert "leaf &lt;b&gt;" in picture.html and "<b>" not in picture.html


def test_an_output_without_a_variable_is_called_as_typed():
    x = leaf(2.0)
    assert show_graph(x.exp() + 1).text.startswith("graph of x.exp() + 1: ")


def test_a_long_expression_is_cut_in_its_box_and_whole_elsewhere():
    x = leaf(2.0)
    picture = show_graph((x + 1000000).exp().sin().cos().exp().sin().cos().exp().sin().cos())
    expression = "(x + 1000000).exp().sin().cos().exp().sin().cos().exp().sin().cos()"
    assert f"[output {expression}]" in picture.text
    texts = [text.text for text in svg(picture.html).iter("text")]
    assert f"output {expression}"[:43] + "…" in texts


def test_a_leaf_that_nobody_names_is_a_leaf():
    y = leaf(2.0) * 2
    assert "AccumulateGrad leaf\n" in show_graph(y).text


X = leaf(1.0, 2.0)
Y = X * 2


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: show_graph(X), "X is a leaf"),
        (lambda: show_graph(Y.detach()), "reads the storage of Y"),
        (lambda: show_graph(Y.data[1:]), "reads the storage of Y"),
        (lambda: show_graph(torch.arange(3)), "int64"),
        (lambda: show_graph(torch.ones(3)), "Nothing that it was computed from"),
        (lambda: show_graph(torch.ones(3).to_sparse()), "Nothing that it was computed from"),
        (lambda: show_backward(X), "There is nothing to run. X is a leaf"),
    ],
)
def test_an_output_without_a_graph_is_told_why(make, reason):
    assert reason in make().text
    assert "<svg" not in make().html


def test_no_grad_and_inference_mode_are_told():
    with torch.no_grad():
        constant = X.exp()
    with torch.inference_mode():
        inference = X.exp()
    assert "no_grad()" in show_graph(constant).text
    assert "inference_mode()" in show_graph(inference).text


def test_a_drawing_beside_an_output_without_a_graph():
    picture = show_graph(Y, Y.detach())
    assert "graph of Y: 2 nodes" in picture.text and "requires_grad is False" in picture.text
    assert "<svg" in picture.html


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: show_graph(), "at least one tensor"),
        (lambda: show_graph([1]), "of type list"),
        (lambda: show_backward(3), "of type int"),
        (lambda: show_graph(Y, names=["Y"]), "must be a dict"),
        (lambda: show_backward(Y, names={"y": 3}), "must be a dict"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_a_reason(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_a_long_graph_is_cut_and_says_so():
    x = leaf(2.0)
    y = x
    for _ in range(3000):
        y = y + x
    picture = show_graph(y)
    assert f"3001 nodes, 1 leaf; the {NODES_SHOWN} nodes nearest to the output are shown" in picture.text
    assert drawn(picture.html)["rect b"] == NODES_SHOWN
    assert "→ a node that is not shown" in picture.text


def test_the_picture_has_a_name_for_those_who_do_not_see_it():
    x = leaf(2.0)
    assert 'role="img" aria-label="graph of x.exp(): 2 nodes' in show_graph(x.exp()).html


# ---- the layout ----------------------------------------------------------------------------------------


def random_layout(seed: int):
    choose = random.Random(seed)
    count = choose.randint(1, 25)
    sizes = [(choose.uniform(60, 240), choose.uniform(30, 110)) for _ in range(count)]
    pairs = list(itertools.combinations(range(count), 2))
    edges = [pair for pair in pairs if choose.random() < 2 / count]
    return sizes, edges, layout(sizes, edges)


@pytest.mark.parametrize("seed", range(30))
def test_boxes_do_not_overlap_and_edges_point_down(seed):
    sizes, edges, place = random_layout(seed)
    boxes = [(x, y, x + w, y + h) for (x, y), (w, h) in zip(place.corners, sizes, strict=True)]
    for a, b in itertools.combinations(boxes, 2):
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
    for source, target in edges:
        assert boxes[source][3] < boxes[target][1]
    assert min(box[0] for box in boxes) >= -1e-6
    assert max(box[2] for box in boxes) <= place.width + 1e-6
    assert max(box[3] for box in boxes) == pytest.approx(place.height)


@pytest.mark.parametrize("seed", range(30))
def test_an_edge_passes_between_the_boxes_of_a_layer(seed):
    sizes, _, place = random_layout(seed)
    boxes = [(x, y, x + w, y + h) for (x, y), (w, h) in zip(place.corners, sizes, strict=True)]
    for points in place.waypoints:
        for (x, enters), (_, leaves) in zip(points[::2], points[1::2], strict=True):
            assert all(x < box[0] or x > box[2] or leaves <= box[1] or enters >= box[3] for box in boxes)


def test_a_tree_is_drawn_without_a_crossing_and_the_first_input_to_the_left():
    place = layout([(50, 30)] * 7, [(0, 2), (0, 1), (1, 3), (1, 4), (2, 5), (2, 6)])
    assert place.rows == [[0], [2, 1], [5, 6, 3, 4]]


# ---- show_backward -------------------------------------------------------------------------------------


def run(output: Tensor):
    graph = read_graph([output.grad_fn])
    return graph, backward.run(graph, output, backward.first_cotangent(output))


def test_what_accumulates_is_what_torch_computes(dag):
    output, leaves = dag
    graph, steps = run(output)
    got = {
        graph.nodes[step.node].variable: step.cotangents[0]
        for step in steps
        if is_leaf(graph.nodes[step.node])
    }
    expected = torch.autograd.grad(output, leaves, allow_unused=True)
    for x, gradient in zip(leaves, expected, strict=True):
        assert (gradient is None) == (x not in got)
        if gradient is not None:
            torch.testing.assert_close(got[x], gradient, rtol=0, atol=0)


def test_every_cotangent_is_the_sum_of_what_was_passed(dag):
    output, _ = dag
    graph, steps = run(output)
    assert steps[0].node == 0 and sorted(step.node for step in steps) == list(range(len(graph.nodes)))
    for step in steps[1:]:
        for result, cotangent in enumerate(step.cotangents):
            terms = [term for term in step.terms.get(result, []) if term is not None]
            assert (cotangent is None) == (not terms)
            if terms:
                torch.testing.assert_close(sum(terms), cotangent)


def test_the_steps_are_in_the_order_of_a_real_backward(dag):
    output, _ = dag
    graph, steps = run(output)
    order = []
    for i, node in enumerate(graph.nodes):
        node.register_prehook(lambda cotangents, i=i: order.append(i))
    output.backward()
    assert [step.node for step in steps] == order


def count_notes(monkeypatch) -> list:
    notes = []
    monkeypatch.setattr(backward, "_note", lambda *args: notes.append(args))
    return notes


def test_no_hook_and_no_gradient_stays_behind(dag, monkeypatch):
    output, leaves = dag
    show_backward(output)
    assert all(x.grad is None for x in leaves)
    notes = count_notes(monkeypatch)
    graph = read_graph([output.grad_fn])
    with backward._watched(graph, []):
        torch.autograd.grad(output, leaves, retain_graph=True, allow_unused=True)
    watched = len(notes)
    output.backward()
    assert 0 < watched == len(notes)


def test_the_graph_can_be_used_again(dag):
    output, leaves = dag
    expected = torch.autograd.grad(output, leaves, retain_graph=True, allow_unused=True)
    rng = torch.get_rng_state()
    show_backward(output)
    assert torch.equal(torch.get_rng_state(), rng)
    output.backward()
    for x, gradient in zip(leaves, expected, strict=True):
        assert gradient is x.grad is None or torch.equal(x.grad, gradient)


def test_a_backward_that_raises_leaves_no_hook(monkeypatch):
    notes = count_notes(monkeypatch)
    x = leaf(2.0)
    y = Refuses.apply(x.exp()) * 2
    with pytest.raises(ValueError, match="not today"):
        show_backward(y)
    assert len(notes) == 1
    with pytest.raises(ValueError, match="not today"):
        y.backward()
    assert len(notes) == 1 and x.grad is None


def test_a_freed_graph_is_refused_in_the_words_of_torch():
    y = leaf(2.0).exp()
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        show_backward(y)


def test_gradients_that_are_there_stay():
    x = leaf(2.0)
    y = x * 3
    y.retain_grad()
    z = y * y
    z.backward(retain_graph=True)
    before = x.grad, y.grad
    text = show_backward(z).text
    assert (x.grad, y.grad) == before and x.grad is before[0] and y.grad is before[1]
    assert "would add 36. to x.grad" in text
    assert (x.grad.item(), y.grad.item()) == (36, 12)


def test_backward_in_words():
    x, a = leaf(2.0), leaf(3.0)
    y = x * a
    z = y * y + x
    assert show_backward(z).text == (
        "backward of z: 5 steps; it starts from 1.\n"
        "  step 1  AddBackward0\n"
        "      cotangent 1.\n"
        "      input 0 → 2 MulBackward0: 1.\n"
        "      input 1 → 4 AccumulateGrad x: 1.\n"
        "  step 2  MulBackward0\n"
        "      cotangent 1.\n"
        "      input 0 → 3 MulBackward0: 6.\n"
        "      input 1 → 3 MulBackward0: 6.\n"
        "  step 3  MulBackward0\n"
        "      cotangent 6. + 6. = 12.\n"
        "      input 0 → 4 AccumulateGrad x: 36.\n"
        "      input 1 → 5 AccumulateGrad a: 24.\n"
        "  step 4  AccumulateGrad x\n"
        "      cotangent 1. + 36. = 37.\n"
        "      would fill x.grad with 37.\n"
        "  step 5  AccumulateGrad a\n"
        "      cotangent 24.\n"
        "      would fill a.grad with 24."
    )


def test_boxes_carry_the_numbers_of_their_steps(dag):
    output, _ = dag
    html = show_backward(output).html
    rows = re.findall(
        r'<tr class="r(\d+)" tabindex="0"><th scope="row">\d+</th><td class="k">(\S+?)[ <]', html
    )
    boxes = {}
    for group in svg(html).iter("g"):
        title = group.findtext("title").splitlines()[0].split()
        boxes[group.get("class").split()[0]] = title[1]
    assert boxes == {f"n{number}": name for number, name in rows}


def test_a_step_lights_up_its_box_by_mouse_and_by_keyboard():
    x = leaf(2.0)
    html = show_backward(x**3 + 5).html
    for n in (1, 2, 3):
        assert f".cl-gr:has(.r{n}:is(:hover, :focus)) .n{n} > rect.b" in html
        assert f".cl-gr:has(.n{n}:hover) .r{n}" in html


def test_an_output_that_is_no_scalar_starts_from_seeded_numbers():
    x = leaf(1.0, 2.0)
    y = x * 3
    assert "a random cotangent (seed 0)" in show_backward(y).text
    start = backward.first_cotangent(y)
    _, steps = run(y)
    torch.testing.assert_close(steps[-1].cotangents[0], 3 * start)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.complex64])
def test_other_dtypes_run(dtype):
    x = torch.ones(2, dtype=dtype, requires_grad=True)
    assert "would fill x.grad with" in show_backward((x * x).sum()).text


def test_a_sparse_gradient_is_shown_by_its_size():
    table = torch.nn.Embedding(3, 1, sparse=True)
    text = show_backward(table(torch.tensor([0, 2])).sum()).text
    assert "would fill table.weight.grad with (3, 1) float32" in text


def test_larger_gradients_are_shown_by_size():
    x = torch.ones(4, 4, requires_grad=True)
    text = show_backward((x * x).sum()).text
    assert "cotangent (4, 4) float32, a sum of 2" in text
    assert "would fill x.grad with (4, 4) float32" in text


def test_a_gradient_that_never_comes_is_told():
    class Blocks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * y

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent, None

    x, y = leaf(2.0), leaf(3.0)
    text = show_backward(Blocks.apply(x, y.exp())).text
    assert "would leave y.grad as it is" in text
    assert "would fill x.grad with 1." in text


def test_a_hook_of_the_learner_shows_and_stays():
    x = leaf(2.0)
    x.register_hook(lambda gradient: gradient * 10)
    y = x * 3
    assert "cotangent 3., which a hook changed to 30." in show_backward(y).text
    y.backward()
    assert x.grad.item() == 30


def test_a_long_backward_is_cut_and_says_so():
    x = leaf(2.0)
    y = x
    for _ in range(2 * NODES_SHOWN):
        y = y + x
    picture = show_backward(y)
    assert f"81 steps; it starts from 1.; the first {NODES_SHOWN} steps are shown" in picture.text
    assert picture.html.count("<tr class=") == NODES_SHOWN


# ---- both ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("show", [show_graph, show_backward])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_graph_gives_the_same_picture_without_addresses(show, seed):
    def picture():
        output, _ = random_dag(seed)
        once, twice = show(output), show(output)
        assert once == twice
        return once

    first, second = picture(), picture()
    assert first == second
    assert "0x" not in first.html + first.text


@pytest.mark.parametrize("show", [show_graph, show_backward])
def test_nothing_becomes_markup(show):
    x = leaf(2.0)
    picture = show(x * 2, names={"<script>&": x})
    assert "<script" not in picture.html
    assert "&lt;script&gt;&amp;" in picture.html
    svg(picture.html)
