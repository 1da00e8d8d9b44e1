"""The same log-probabilities by transformers, for machines that have it: float32, or its own bfloat16."""
import numpy
import torch
import transformers


class TorchReference:
    def __init__(self, folder, bfloat16=False):
        torch.backends.cuda.matmul.allow_tf32 = False
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = torch.bfloat16 if bfloat16 else torch.float32
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(self.device).eval()

    @torch.no_grad()
    def logprobs(self, pairs):
        for prompt, output in pairs:
            ids = torch.tensor([prompt + output[:-1]], device=self.device)
            logits = self.model(ids).logits[0, len(prompt) - 1:].float()
            yield numpy.asarray(torch.log_softmax(logits, -1).cpu())
