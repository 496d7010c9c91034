/* bench/transformer.c -- an AdamW step: 6 layers of width 384, 6 heads, 8 rows of 128 tokens.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "language.h"

int main(int argc, char **argv)
{
    const bench_side peer[] = TORCH("transformer");
    bench           *b = bench_open("transformer", argc, argv);
    language         l = {"6 layers, 384 wide, 8x128 tokens, AdamW", 1000, 6, 384, 6, 8, 128};

    measure_language(b, &l, peer, 3);
    return bench_close(b);
}
