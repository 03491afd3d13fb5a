"""Small stand-ins for the objects that slime and verl pass to deploy/client/seer_slime.py and seer_verl.py; see stand_ins.md."""
import asyncio, contextlib, dataclasses, enum, json, struct, sys, types


@contextlib.contextmanager
def modules(**by_name):
    """These modules can be imported; dots in names are written as __."""
    names = {name.replace("__", "."): fields for name, fields in by_name.items()}
    before = {name: sys.modules.get(name) for name in names}
    for name, fields in names.items():
        module = types.ModuleType(name)
        module.__path__ = []
        module.__dict__.update(fields)
        sys.modules[name] = module
    try:
        yield
    finally:
        for name, module in before.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module


# ---- slime ---------------------------------------------------------------------------------------------------------------------------

@dataclasses.dataclass
class Sample:
    group_index: int = None
    index: int = None
    prompt: str = ""
    tokens: list = dataclasses.field(default_factory=list)
    multimodal_inputs: dict = None
    response: str = ""
    response_length: int = 0
    loss_mask: list = None
    weight_versions: list = dataclasses.field(default_factory=list)
    rollout_log_probs: list = None
    rollout_top_p_token_ids: str = None  # as the server wrote them; slime decodes them here
    rollout_top_p_token_offsets: str = None
    session_id: str = None

    class Status(enum.Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"

    status: Status = Status.PENDING

    def append_response_tokens(self, args=None, *, tokens=None, log_probs=None, trainable=True, meta_info=None, text=None):
        assert trainable and len(tokens) == len(log_probs)
        self.tokens += tokens
        self.response += text
        self.response_length += len(tokens)
        self.loss_mask = (self.loss_mask or []) + [1] * len(tokens)
        self.rollout_log_probs = (self.rollout_log_probs or []) + log_probs
        self.weight_versions.append(meta_info["weight_version"])
        self.rollout_top_p_token_ids = meta_info.get("top_p_token_ids")
        self.rollout_top_p_token_offsets = meta_info.get("top_p_token_offsets")
        ends = {"length": Sample.Status.TRUNCATED, "abort": Sample.Status.ABORTED, "stop": Sample.Status.COMPLETED}
        self.status = ends[meta_info["finish_reason"]["type"]]


def slime_modules(tokenizer):
    class GenerateState:
        def __init__(self, args):
            self.tokenizer = tokenizer
    return modules(slime={}, slime__rollout={}, slime__rollout__sglang_rollout={"GenerateState": GenerateState})


# ---- verl ----------------------------------------------------------------------------------------------------------------------------

@dataclasses.dataclass
class TokenOutput:
    token_ids: list
    log_probs: list = None
    routed_experts: object = None
    stop_reason: str = None
    num_preempted: int = None
    extra_fields: dict = dataclasses.field(default_factory=dict)


class RolloutReplica:
    def __init__(self, replica_rank, config, model_config, gpus_per_node=8):
        self.replica_rank, self.config, self.model_config, self.name_suffix = replica_rank, config, model_config, ""
        self.servers, self._server_handle, self._server_address = [], None, None

    @property
    def max_concurrency(self):
        return max(1000, self.config.max_num_seqs + 16)

    async def init_hybrid(self, worker_group):
        await self.launch_servers()

    async def abort_all_requests(self):
        await asyncio.gather(*[server.abort_all_requests.remote() for server in self.servers])

    async def resume_generation(self):
        await asyncio.gather(*[server.resume_generation.remote() for server in self.servers])


class RolloutReplicaRegistry:
    loaders = {}

    @classmethod
    def register(cls, name, loader):
        cls.loaders[name] = loader

    @classmethod
    def get(cls, name):
        return cls.loaders[name]()


class SingleTurnAgentLoop:
    def __init__(self, server_manager, rollout_config):
        self.server_manager, self.rollout_config = server_manager, rollout_config

    async def run(self, sampling_params, **kwargs):
        return await self.server_manager.generate(request_id="a", prompt_ids=kwargs["raw_prompt"], sampling_params=sampling_params)


class Actor:
    """Of Ray: each method has remote(). Of its calls, only so many run at a time."""

    def __init__(self, made, max_concurrency):
        self._made, self._slots = made, asyncio.Semaphore(max_concurrency)

    def __getattr__(self, name):
        async def call(*args, **fields):
            async with self._slots:
                return await getattr(self._made, name)(*args, **fields)
        return types.SimpleNamespace(remote=call)


class ActorClass:
    named = {}

    def __init__(self, cls):
        self._cls = cls

    def options(self, name, get_if_exists, num_cpus, max_concurrency):
        return types.SimpleNamespace(remote=lambda *args: self.named.setdefault(name, Actor(self._cls(*args), max_concurrency)))


class Tensor:
    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data, self.nbytes = dtype, shape, data, len(data)

    def detach(self):
        return self

    def to(self, target, copy=False):
        """A device, or a dtype: F32, or BF16 which is its first half."""
        if (self.dtype, target) == ("BF16", "F32"):
            wide = bytearray(2 * self.nbytes)
            wide[2::4], wide[3::4] = self.data[::2], self.data[1::2]
            return Tensor("F32", self.shape, bytes(wide))
        if (self.dtype, target) == ("F32", "BF16"):
            narrow = bytearray(self.nbytes // 2)
            narrow[::2], narrow[1::2] = self.data[2::4], self.data[3::4]
            return Tensor("BF16", self.shape, bytes(narrow))
        return self

    def contiguous(self):
        return self

    def flatten(self):
        return self

    def view(self, dtype):
        return self

    def numpy(self):
        return self.data


def read_tensors(path):
    """Name and Tensor of each one in a safetensors file: 8 bytes with the size of the JSON head, the head, the data."""
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        head = json.loads(file.read(size))
        data = file.read()
    for name, entry in head.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            yield name, Tensor(entry["dtype"], entry["shape"], data[begin:end])


def save_file(tensors, path):
    head, at = {}, 0
    for name, tensor in tensors.items():
        head[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    text = json.dumps(head).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(tensor.data for tensor in tensors.values()))


def verl_modules(rollout_registry):
    return modules(verl={}, verl__workers={}, verl__workers__rollout={}, verl__workers__rollout__base={"_ROLLOUT_REGISTRY": rollout_registry},
                   verl__workers__rollout__replica={"TokenOutput": TokenOutput, "RolloutReplica": RolloutReplica,
                                                    "RolloutReplicaRegistry": RolloutReplicaRegistry},
                   verl__experimental={}, verl__experimental__agent_loop={},
                   verl__experimental__agent_loop__single_turn_agent_loop={"SingleTurnAgentLoop": SingleTurnAgentLoop},
                   ray={"remote": ActorClass}, safetensors={}, safetensors__torch={"save_file": save_file}, torch={"uint8": None, "bfloat16": "BF16", "float16": "F16", "float32": "F32"})
