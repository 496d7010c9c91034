/* test/simd_levels.c -- prints the SIMD levels of this machine, the lowest first.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "kernel/simd.h"

int main(void)
{
    for (int level = CH_SIMD_BASE; level <= (int)ch__simd_best(); level++)
        puts(ch__simd_name((ch_simd)level));
    return 0;
}
