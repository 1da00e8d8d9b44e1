"""LoRA adapters by name: vLLM's LoRARequest, and which of them an engine has."""
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LoRARequest:
    """An adapter: the directory that PEFT wrote, a name, and a number of its own. Equal ones have the same name."""
    lora_name: str
    lora_int_id: int = field(compare=False)
    lora_path: str = field(compare=False)
    base_model_name: str | None = field(default=None, compare=False)  # only told back
    tensorizer_config_dict: dict | None = field(default=None, compare=False)
    load_inplace: bool = field(default=False, compare=False)

    def __post_init__(self):
        if not isinstance(self.lora_int_id, int) or self.lora_int_id < 1:
            raise ValueError(f"lora_int_id is {self.lora_int_id}; it must be at least 1")
        if not self.lora_name or not self.lora_path:
            raise ValueError("a LoRARequest needs a name and the path of the adapter's directory")
        if self.tensorizer_config_dict is not None:
            raise ValueError("tensorizer_config_dict is not supported: adapters are read from PEFT's directories")
        if self.load_inplace:
            raise ValueError("load_inplace is not supported: give the new adapter a name and a number of its own")

    name = property(lambda self: self.lora_name)
    adapter_id = property(lambda self: self.lora_int_id)
    path = property(lambda self: self.lora_path)


class Adapters:
    """Loads what requests name, once. Any thread."""

    def __init__(self, engine):
        self.engine = engine
        self.names = {}  # lora_int_id: name

    def load(self, request):
        """In short turns, so that Python sees a Ctrl-C; what it ended goes on with the next call."""
        if not isinstance(request, LoRARequest):
            raise ValueError(f"a lora_request is a LoRARequest, not {type(request).__name__}")
        for number, name in list(self.names.items()):
            if (number == request.lora_int_id) != (name == request.lora_name):
                raise ValueError(f"the LoRA adapter {name!r} has the number {number}; {request.lora_name!r} with "
                                 f"{request.lora_int_id} is another: give each a name and a number of its own")
        while not self.engine.load_adapter(request.lora_name, str(request.lora_path), 0.1):
            pass
        self.names[request.lora_int_id] = request.lora_name

    def remove(self, number):
        """False: none has the number. Waits for its requests."""
        name = self.names.get(number)
        if name is None:
            return False
        while not self.engine.unload_adapter(name, 0.1):
            pass
        del self.names[number]
        return True
