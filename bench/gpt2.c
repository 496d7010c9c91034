/* bench/gpt2.c -- an AdamW step of GPT-2, 124 million parameters, 4 rows of 64 tokens.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "language.h"

int main(int argc, char **argv)
{
    const bench_side peer[] = TORCH("gpt2");
    bench           *b = bench_open("gpt2", argc, argv);
    language         l = {"GPT-2 124M, 4x64 tokens, AdamW", 50257, 12, 768, 12, 4, 64};

    measure_language(b, &l, peer, 3);
    return bench_close(b);
}
