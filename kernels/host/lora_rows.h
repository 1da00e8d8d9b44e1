#pragma once
// lora_rows and lora_embed on the host: plain code, whatever the instruction set.

#include "kernels/host/launcher.h"

namespace refrain::kernels {

void lora_rows(const LoraRowsArgs& args, const Team& team);
void lora_embed(const LoraEmbedArgs& args, const Team& team);

}  // namespace refrain::kernels
