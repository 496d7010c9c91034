/* test/spmd/test_ranges.c -- layouts of values as ranges of the factors of a call, and back.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "spmd/divide.h"

enum { CORES = 8 };

static unsigned draw(unsigned *seed, unsigned below)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % below;
}

/* Sets the rule of a call whose output has axes (0, 1) and (2, 3), with random sizes. */
static void random_rule(unsigned *seed, ch_axis_rule (*out)[CH_MAX_RANK], ch_factors *f,
                        ch_dims *d)
{
    *f = (ch_factors){.n = 4, .n_out = 1, .n_set_out = 1, .out = out};
    *d = (ch_dims){.rank = 2, .dim = {ch__dim(1), ch__dim(1)}};
    memset(out, 0, sizeof(*out));
    for (int k = 0; k < 4; k++) {
        int64_t size = draw(seed, 7);

        f->factor[k].size = ch__dim(size);
        out[0][k / 2].factor[out[0][k / 2].n++] = (signed char)k;
        d->dim[k / 2].n *= size;
    }
}

/* Sets ranges that divide random factors and give every combination to a core. */
static void random_ranges(unsigned *seed, ch_core_layout *ranges)
{
    for (int n = CORES + 1; n > CORES;) {
        ch__layout_replicated(CORES, 4, ranges);
        n = 1;
        for (int k = 0; k < 4; k++) {
            ranges->parts[k] = draw(seed, 2) == 0 ? 1 : 1 + (int)draw(seed, 4);
            ranges->unit[k] = ranges->parts[k] > 1 ? 1 + draw(seed, 2) : 1;
            n *= ranges->parts[k];
        }
    }
    for (int c = 0; c < CORES; c++) {
        for (int k = 3, i = c; k >= 0; i /= ranges->parts[k--])
            ranges->part[k][c] = (unsigned char)(i % ranges->parts[k]);
    }
}

/* If ranges give an output a layout, the regions of the layout are those of the ranges. */
static void ranges_and_the_lowered_layout_give_the_same_regions(void **state)
{
    unsigned seed = 3;
    int      n_layouts = 0;

    (void)state;
    for (int i = 0; i < 20000; i++) {
        ch_axis_rule   out[1][CH_MAX_RANK];
        ch_factors     f;
        ch_dims        d;
        ch_core_layout ranges, l;

        random_rule(&seed, out, &f, &d);
        random_ranges(&seed, &ranges);
        if (!ch__lower(&f, &ranges, out[0], &d, false, &l))
            continue;
        n_layouts++;
        assert_true(ch__layout_is_covered(&l));
        for (int c = 0; c < CORES; c++) {
            int64_t   from[CH_MAX_FACTORS], to[CH_MAX_FACTORS];
            ch_region computed = {.begin = {0}}, has;
            bool      computes = ch__core_ranges(&f, &ranges, c, from, to);
            bool      is_range = true;

            assert_true(ch__core_region(&l, ch__dims_shape(&d), c, &has));
            for (int k = 0; computes && k < 2; k++)
                is_range &= ch__axis_range(&f, &out[0][k], d.dim[k].n, from, to, k, &computed);
            if (!computes)
                assert_int_equal(ch__region_count(&has, 2), 0);
            else if (!is_range || memcmp(&computed, &has, sizeof(has)) != 0)
                fail_msg("case %d: sizes (%d %d)(%d %d) in parts %d %d %d %d of units %d %d %d "
                         "%d, core %d: from %d, %d size %d, %d want %d, %d size %d, %d",
                         i, (int)f.factor[0].size.n, (int)f.factor[1].size.n,
                         (int)f.factor[2].size.n, (int)f.factor[3].size.n, ranges.parts[0],
                         ranges.parts[1], ranges.parts[2], ranges.parts[3], (int)ranges.unit[0],
                         (int)ranges.unit[1], (int)ranges.unit[2], (int)ranges.unit[3], c,
                         (int)has.begin[0], (int)has.begin[1], (int)has.size[0],
                         (int)has.size[1], (int)computed.begin[0], (int)computed.begin[1],
                         (int)computed.size[0], (int)computed.size[1]);
        }
    }
    assert_true(n_layouts > 2000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_and_the_lowered_layout_give_the_same_regions),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
