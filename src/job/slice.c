/* job/slice.c -- rows of a sharded variable by index and by slice (slice.h).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "job/slice.h"

#include "base/fault.h"
#include "job/shard.h"

/* Resolves a bound to a row number in [low, size + low]. `low` is 0 for a positive step and -1
 * for a negative step, where -1 stands for the row before the first. */
static int64_t resolve_bound(int64_t bound, int64_t size, int64_t low)
{
    if (bound < 0)
        bound += size;
    return bound < low ? low : bound > size + low ? size + low : bound;
}

ch_status ch__slice_rows(int64_t size, const ch_slice_bounds *b, ch_slice_range *out)
{
    int64_t  low = b->step > 0 ? 0 : -1, high = size + low, from, to, span;
    uint64_t stride = b->step > 0 ? (uint64_t)b->step : 0 - (uint64_t)b->step;

    if (b->step == 0)
        return ch__fail(CH_INVALID_ARGUMENT, "slice of %lld rows: the step is 0",
                        (long long)size);
    from = b->has_start ? resolve_bound(b->start, size, low) : b->step > 0 ? low : high;
    to = b->has_stop ? resolve_bound(b->stop, size, low) : b->step > 0 ? high : low;
    span = b->step > 0 ? to - from : from - to;
    *out = (ch_slice_range){.step = b->step > 0 ? 1 : -1};
    if (span <= 0)
        return CH_OK;
    out->begin = from;
    out->count = (int64_t)((uint64_t)(span - 1) / stride) + 1;
    if (out->count > 1) /* otherwise the step, which may be huge, is not used */
        out->step = b->step;
    return CH_OK;
}

/* Returns how many of the numbers 0, step, 2 * step, ... are below `limit`. */
static int64_t count_below(int64_t limit, int64_t step)
{
    return limit <= 0 ? 0 : (limit - 1) / step + 1;
}

ch_slice_range ch__slice_shard(ch_slice_range all, int64_t size, int n, int i)
{
    int64_t begin = ch__part_begin(size, n, i), end = ch__part_begin(size, n, i + 1);
    int64_t before, until; /* rows of `all` before the shard's rows, and up to their end */
    ch_slice_range of = {.step = all.step};

    if (all.step > 0) {
        before = count_below(begin - all.begin, all.step);
        until = count_below(end - all.begin, all.step);
    } else {
        before = count_below(all.begin - end + 1, -all.step);
        until = count_below(all.begin - begin + 1, -all.step);
    }
    of.at = before < all.count ? before : all.count;
    of.count = (until < all.count ? until : all.count) - of.at;
    if (of.count > 0)
        of.begin = all.begin + of.at * all.step - begin;
    return of;
}

ch_status ch__slice_row(int64_t size, int n, int64_t index, int *shard, int64_t *row)
{
    int64_t at = index < 0 ? index + size : index;

    if (at < 0 || at >= size)
        return ch__fail(CH_INVALID_ARGUMENT, "index %lld is out of bounds of %lld rows",
                        (long long)index, (long long)size);
    *shard = ch__part_of(size, n, at);
    *row = at - ch__part_begin(size, n, *shard);
    return CH_OK;
}
