"""What an answer may not leave behind on a model that it is handed."""

from __future__ import annotations

from typing import Any

from torch import nn

from course_lib.checking.records import hook_count


def left_on(model: nn.Module) -> dict[str, Any]:
    """Another mode, hooks, frozen parameters, more parameters or buffers: what differs afterwards was left behind."""
    return {
        "modes": [module.training for module in model.modules()],
        "hooks": sum(hook_count(module) for module in model.modules()),
        "tensor hooks": sum(len(p._backward_hooks or ()) for p in model.parameters()),
        "trained": [(name, p.requires_grad) for name, p in model.named_parameters()],
        "buffers": [name for name, _ in model.named_buffers()],
    }
