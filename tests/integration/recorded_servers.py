"""Servers that answer as SGLang's and vLLM's sources do, as far as a router asks them, with made-up tokens: no engine, no GPU. They keep
what they were asked. A call of a trainer's group is answered when all members have been asked it, as NCCL makes them wait.

The forms are those of SGLang (entrypoints/http_server.py, managers/io_struct.py) and vLLM (entrypoints/serve/dev/rlhf/api_router.py at
0100a21, entrypoints/openai/completion)."""
import http.server, json, threading


class Group:
    """Where the members of a trainer's group meet. `members`: how many there are."""

    def __init__(self, members):
        self.barrier = threading.Barrier(members)

    def meet(self):
        self.barrier.wait(timeout=60)


class RecordedServer:
    def __init__(self, kind, ranks, group=None, weights="default", port=0):
        self.kind, self.ranks, self.group = kind, ranks, group
        self.weights, self.version = weights, 0  # the label, and the number in the last one that it was given
        self.calls = []      # (path, body) of a trainer's calls, in order
        self.rids = []       # of requests, in order
        self.fails = set()   # paths that are answered with an error
        self.hangs = threading.Event()  # set: requests are not answered until stop()
        self.ended = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def answer(self, body, status=200, kind="application/json"):
                data = (body if isinstance(body, str) else json.dumps(body)).encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                if not self.is_gone():
                    outer.get(self, self.path.split("?")[0])

            def do_POST(self):
                data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if not self.is_gone():
                    outer.post(self, self.path, json.loads(data) if data else {})

            def is_gone(self):
                """Connections that were kept end with the server."""
                self.close_connection |= outer.ended.is_set()
                return outer.ended.is_set()

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.http.daemon_threads = True
        self.port = self.http.server_address[1]
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def stop(self):
        self.ended.set()
        self.http.shutdown()
        self.http.server_close()

    def label(self, weights):
        self.weights = weights
        self.version = int(weights.split("-")[0]) if weights[0].isdigit() else 0

    def get(self, to, path):
        sglang = {"/server_info": {"model_path": "/m", "served_model_name": "m", "tp_size": self.ranks, "dp_size": 1, "max_total_num_tokens": 100000,
                                   "max_running_requests": 8, "context_length": 4096, "weight_version": self.weights, "version": "0.5.3", "internal_states": [{}]},
                  "/v1/loads": {"loads": [{"dp_rank": 0, "num_running_reqs": 0, "num_waiting_reqs": 0, "token_usage": 0.0}]}}
        vllm = {"/v1/models": {"object": "list", "data": [{"id": "m", "object": "model", "max_model_len": 4096}]}, "/version": {"version": "0.14.0"},
                "/weight_info": {"weight_version": self.weights}, "/get_world_size": {"world_size": self.ranks}}
        answers = vllm if self.kind == "vllm" else sglang
        if path in answers:
            return to.answer(answers[path])
        if path == "/metrics" and self.kind == "vllm":
            return to.answer('vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1.0\nvllm:num_requests_running{engine="0"} 0.0\n', kind="text/plain")
        to.answer({"detail": "Not Found"}, 404)

    def post(self, to, path, body):
        if path == "/generate" and self.kind == "sglang":
            return self.generate(to, body)
        if path == "/v1/completions" and self.kind == "vllm":
            return self.complete(to, body)
        if path == "/abort_request":
            return to.answer({})
        if path == "/inference/v1/generate":
            return to.answer({"detail": "Not Found"}, 404)
        self.calls.append((path, body))
        if path in self.fails:
            return to.answer({"success": False, "message": "Failed to update parameter online: out of memory"}, 400) if self.kind == "sglang" else to.answer({"detail": "out of memory"}, 500)
        if self.group is not None and path in ("/init_weights_update_group", "/update_weights_from_distributed", "/init_weight_transfer_engine", "/update_weights"):
            self.group.meet()
        if path in ("/update_weights_from_distributed", "/update_weights_from_disk", "/finish_weight_update") and body.get("weight_version") is not None:
            self.label(body["weight_version"])
        if path == "/update_weight_version":
            self.label(body["new_version"])
        to.answer({"success": True, "message": "Succeeded."} if self.kind == "sglang" else {"message": "Weights updated"})

    def token(self, position):
        return 2 + (position + self.version) % 20

    def generate(self, to, body):
        ids, params = body["input_ids"], body["sampling_params"]
        self.rids.append(body["rid"])
        if self.hangs.is_set():
            self.ended.wait()
            return to.is_gone()
        tokens = [self.token(len(ids) + i) for i in range(params["max_new_tokens"])]
        meta = {"id": body["rid"], "finish_reason": {"type": "length", "length": len(tokens)}, "prompt_tokens": len(ids), "weight_version": self.weights,
                "output_token_logprobs": [[-0.5, token, None] for token in tokens], "completion_tokens": len(tokens), "cached_tokens": 0}
        to.answer("data: " + json.dumps({"text": "", "output_ids": tokens, "meta_info": meta}) + "\n\ndata: [DONE]\n\n", kind="text/event-stream")

    def complete(self, to, body):
        tokens = [self.token(len(body["prompt"]) + i) for i in range(body["max_tokens"])]
        choice = {"index": 0, "text": "", "logprobs": {"token_logprobs": [-0.5] * len(tokens)}, "finish_reason": "length", "stop_reason": None,
                  "prompt_token_ids": body["prompt"], "token_ids": tokens}
        to.answer("data: " + json.dumps({"id": "cmpl-1", "object": "text_completion", "choices": [choice]}) + "\n\ndata: [DONE]\n\n", kind="text/event-stream")
