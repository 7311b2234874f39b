# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Start here
#
# > You can read about PyTorch for weeks and be sure that you understood it. **How do you find out whether you did?**
#
# By saying what a line will do before you run it, and by writing the line yourself and having it judged.
# This notebook takes you once through everything that the course asks of you, with an exercise so small that only the rhythm is new.
#
# **Time:** 10 to 15 minutes.
#
# **You need:** Python. No GPU, no network, no data set.
#
# After this notebook you can
#
# {{objectives}}

# %% [markdown]
# ## The map
#
# The course goes from the bytes of a tensor to a small GPT that you wrote, trained, profiled and exported yourself.
# It rests on three ideas: tensors hold the numbers, autograd differentiates, modules organize.
# They stay the same whether you will train, distribute, profile or serve a model.
#
# | notebook | what it answers |
# |---|---|
# | 00 start here | how does this course work? |
# | 01 tensors | does this line copy, or does it look at the same memory? |
# | 02 autograd | what does `backward()` do, and where do gradients come from? |
# | 03 modules | which attributes are parameters, and what does `state_dict` hold? |
# | 04 data | how do samples become batches, reproducibly? |
# | 05 training | what belongs into a training loop, in which order? |
# | 06 memory and profiling | where do the bytes and the milliseconds go? |
# | 07 pitfalls | why does this code run and still not learn? |
# | 08 distributed | what do several processes exchange? |
# | 09 inference | what leaves the laboratory, and in which format? |
# | 10 mini GPT | how does all of it fit together? |

# %%
import inspect
import io
import pathlib
import warnings

import torch

from course_lib import check, hint, passing, predict, progress, solution
from course_lib.checking import judge_callable
from course_lib.display import report_face
from course_lib.exercises import exercise

version = tuple(int(part) for part in torch.__version__.split(".")[:2])
assert (2, 6) <= version < (2, 14), f"The course was made for torch 2.6 to 2.13; this is {torch.__version__}."

# %% [markdown]
# If that cell ran without a word, your PyTorch is one that the course was made for.
#
# ## Predict
#
# A question comes before the cell that answers it.
# Decide, write your letter in place of the dots, run the cell, read the reply.
# A wrong prediction costs nothing and teaches the most: it shows which of your pictures of PyTorch needs repair.
#
# {{predict first_prediction}}

# %%
predict("first_prediction", "b")

# %% objective="start.rhythm"
a = torch.zeros(3)
b = a
b += 1
print(a)

# %% [markdown]
# Two names, one tensor: `b += 1` writes in place, and `a` looks at the same numbers.
# Whether two *tensors* can look at the same numbers is what notebook 01 is about.

# %% [markdown]
# ## Solve
#
# An exercise opens with a card like the one below: what it is called, how hard it is, how long it takes, what it is worth.
# *Stretch* exercises may be skipped; nothing later depends on them.
#
# The text between the triple quotes says exactly what is asked.
# A new exercise is a **stub**: it raises `NotImplementedError`. Replace that line by your code.

# %% [markdown]
# Before you write yours, look at a wrong answer.
# Someone believed that a tensor of shape `(2, 3)` holds `2 + 3` numbers.

# %% objective="start.rhythm"
def adds_the_sizes(shape: tuple[int, ...]) -> int:
    return sum(shape)

# %% objective="start.rhythm"
report_face(judge_callable(exercise("count_elements"), adds_the_sizes))

# %% [markdown]
# Read a report from the top.
#
# 1. The **verdict**, in one word.
# 2. The **diagnosis**, if the course knows this mistake: what you believed, and what is true.
# 3. The **smallest case** that fails. You can paste the call into a cell of your own.
# 4. What was **compared**: expected against yours. It is always more than the value: here, whether the call changed its inputs or a global setting.
#
# Your turn.
# How many numbers does a tensor of a given shape hold?
#
# {{exercise count_elements}}

# %% exercise="count_elements"
def count_elements(shape: tuple[int, ...]) -> int:
    """Return how many elements a tensor of this shape has.

    `shape` is a tuple of sizes, none of them negative.
    The shape `()` belongs to a tensor without dimensions, which holds one element.
    A size of 0 means that the tensor holds none.
    The result is a plain `int`.
    """
    ### BEGIN SOLUTION
    count = 1
    for size in shape:
        count *= size
    return count
    ### END SOLUTION

# %%
check(count_elements)

# %% [markdown]
# Run the check as often as you like.
# It judges the last definition of `count_elements` that you ran, in a fresh namespace, and nothing is counted against you.
#
# | verdict | it means |
# |---|---|
# | passed | everything that was compared is right |
# | failed | it ran, and something differs; the report says what |
# | not attempted | the stub is still there |
# | error | your code raised; the report shows where |
# | grader fault | the course has a bug; it costs you nothing |
#
# Stuck? Make a new cell (press `B`) and run `hint(count_elements)`.
# There are three hints: where to look, what to compute, nearly the code.
# `solution(count_elements)` shows the course's answer and says why it is right, once you have passed, used the hints, or tried a few times.

# %% [markdown]
# ## Use what you built
#
# Later cells use your functions through `passing`.
# It returns yours once it has passed, and the course's until then.
# So every notebook runs from top to bottom at every moment, and you may leave an exercise for tomorrow.

# %% objective="start.rhythm"
elements = passing(count_elements)
print("(2, 3, 4):", elements((2, 3, 4)), " (5, 0):", elements((5, 0)), " ():", elements(()))

# %% [markdown]
# Compare with PyTorch, which calls it `numel`:

# %% objective="start.rhythm"
[torch.empty(sizes).numel() for sizes in [(2, 3, 4), (5, 0), ()]]

# %% [markdown]
# A tensor without dimensions holds one number, and a single 0 in the shape means that there are none.
# Both follow from one rule, and both come back in notebook 01.
#
# ## See where you are

# %% tags=["nbval-ignore-output"]
progress()

# %% [markdown]
# Your work is in two places, both yours alone:
#
# - `workbook/` holds your copies of the notebooks. An update of the course never overwrites one that you changed.
# - `progress.sqlite` remembers what you passed.
#
# In a terminal, in the course's folder:
#
# | command | what it does |
# |---|---|
# | `python3 -m course_lib` | open the course |
# | `python3 -m course_lib status` | show your progress |
# | `python3 -m course_lib check 01_tensors` | check all your answers in a notebook |
# | `python3 -m course_lib reset count_elements` | start an exercise again; a copy of yours is kept |
# | `python3 -m course_lib doctor` | what is installed, and what to do about each problem |

# %% [markdown]
# ## Be kind to yourself
#
# - Predict *before* you run, even when you are in a hurry. Reading a reply is not the same as having been wrong.
# - Ten minutes stuck is thinking; thirty is a reason for a hint. Hints are free.
# - Change the cells. Break them. The worst that can happen is `Kernel > Restart`, and your answers stay.
# - A wrong answer with a good diagnosis is worth more than a right one by luck.

# %% [markdown]
# ## If you learned PyTorch some time ago
#
# Much of what you find in books and on the web was written for PyTorch 2.4 or older, and most of it still runs.
# Some defaults changed, and the cells show what your version does.

# %% objective="start.rhythm"
def default(function, parameter: str) -> object:
    return inspect.signature(function).parameters[parameter].default


print("zero_grad:   set_to_none =", default(torch.optim.Optimizer.zero_grad, "set_to_none"))
print("onnx.export: dynamo      =", default(torch.onnx.export, "dynamo"))
print("compiling:", torch.compiler.is_compiling())

# %% [markdown]
# `zero_grad` drops gradients instead of filling them with zeros (since 2.0).
# The ONNX exporter is the one built on `torch.export` (since 2.9).
# And PyTorch 2 did not become a compiler: you run eagerly until you ask for `torch.compile`.
#
# Since 2.6, `torch.load` refuses whatever is not plain tensors and containers, because a pickle may run any code:

# %% objective="start.rhythm"
file = io.BytesIO()
torch.save(pathlib.PurePosixPath("a path"), file)
_ = file.seek(0)
try:
    torch.load(file)
except Exception as error:
    print(type(error).__name__, "-", str(error).split(". ")[0])

# %% [markdown]
# Other names still work and warn.
# Here are three that you will meet in older code, with what PyTorch says today:

# %% objective="start.rhythm"
def warnings_of(f) -> list[str]:
    """The first sentence of each warning that calling `f()` gives."""
    torch.set_warn_always(True)  # PyTorch gives some only once per process
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        f()
    torch.set_warn_always(False)
    return [str(warning.message).split(". ")[0] for warning in caught]


# %% objective="start.rhythm"
print(*warnings_of(lambda: torch.zeros(1, 2, 3).T))
print(*warnings_of(lambda: torch.ones(2).storage()))
print(warnings_of(torch.cuda.amp.GradScaler)[0])

# %% [markdown]
# One thing no cell can show: on Linux, a plain `pip install torch` brings the CUDA build, which is large.
# This course needs only the CPU build.
#
# ## Further reading
#
# - [PyTorch tutorials](https://docs.pytorch.org/tutorials/): the official ones. Older links to `pytorch.org/tutorials` lead there.
# - [PyTorch internals](https://blog.ezyang.com/2019/05/pytorch-internals/) by Edward Yang, 2019: still the best picture of tensors and dispatch. It predates `torch.compile`.
# - [The profiler recipe](https://docs.pytorch.org/tutorials/recipes/recipes/profiler_recipe.html), for notebook 06.
# - [Understanding GPU memory](https://pytorch.org/blog/understanding-gpu-memory-1/), for notebook 06 as well.
# - [nanoGPT](https://github.com/karpathy/nanoGPT), the classic small GPT, now retired by its author in favor of [nanochat](https://github.com/karpathy/nanochat).
#
# ## The answer
#
# > How do you find out whether you understood?
#
# You said what a line would print before it did, you wrote a function, and something that does not care how sure
# you were compared it with the truth.
# Every notebook from here on works like this.
#
# ## Can you ...?
#
# - [ ] say what `predict`, `check`, `hint`, `solution`, `passing` and `progress` do?
# - [ ] read a report, and find the smallest case that fails? (`count_elements`)
# - [ ] leave an exercise unsolved, and still run the notebook to its end?
#
# Then open `01_tensors.ipynb`.
