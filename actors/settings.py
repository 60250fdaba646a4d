"""Settings of the worker: which model, and how much work goes into one step."""

from typing import Literal

from pydantic import Field, model_validator

from stratakv.storage.settings import SettingsModel


class ModelSettings(SettingsModel):
    """The model that every replica serves."""

    path: str = Field("smollm2", description="Hugging Face directory or hub name, `smollm2` or `gemma3`")
    served_name: str | None = Field(
        None, description="name clients use; by default the last part of the path"
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto takes a GPU when there is one")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="compute and KV type; auto is float32 on a CPU and bfloat16 on a GPU"
    )
    threads: int = Field(1, ge=1, description="torch threads of a worker on a CPU")
    context_length: int | None = Field(
        None, ge=1, description="tokens a request may have; by default the model's own"
    )


class SchedulerSettings(SettingsModel):
    """How much one step does."""

    token_budget: int = Field(
        512, ge=1, description="tokens one step computes at most; long prompts are cut to it"
    )
    max_running: int = Field(64, ge=1, description="requests in one batch at most")
    max_waiting: int = Field(1024, ge=1, description="requests that may queue; more are refused with 429")

    @model_validator(mode="after")
    def _every_running_request_can_decode(self) -> "SchedulerSettings":
        if self.token_budget < self.max_running:
            raise ValueError(
                f"scheduler.token_budget is {self.token_budget}, less than scheduler.max_running ({self.max_running}): "
                "a step could not give each running request its token; raise the budget or lower max_running"
            )
        return self
