/* strategy/partition.c -- partitioners: the number of shards of a variable, and their axis.
 *
 * A partitioner of the kinds fixed, min_size and max_size is computed here; CH_PARTITIONER_CALL
 * calls a function of the program. parameter_server_vars.c is the user inside the library.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cohort/partitioner.h"

#include <string.h>

#include "base/fault.h"
#include "graph/op.h"
#include "tensor/tensor.h"

ch_partitioner ch_partitioner_fixed(int shards)
{
    return (ch_partitioner){.kind = CH_PARTITIONER_FIXED, .shards = shards};
}

ch_partitioner ch_partitioner_min_size(int64_t min_shard_bytes, int max_shards)
{
    return (ch_partitioner){
        .kind = CH_PARTITIONER_MIN_SIZE, .shards = max_shards, .shard_bytes = min_shard_bytes};
}

ch_partitioner ch_partitioner_max_size(int64_t max_shard_bytes, int max_shards)
{
    return (ch_partitioner){
        .kind = CH_PARTITIONER_MAX_SIZE, .shards = max_shards, .shard_bytes = max_shard_bytes};
}

/* ---- built-in partitioners ---- */

static ch_status check_limits(const ch_partitioner *p)
{
    bool    is_max = p->kind == CH_PARTITIONER_MAX_SIZE;
    int     fewest = is_max ? 0 : 1;
    int64_t least = is_max ? 1 : 0;

    if ((unsigned)p->kind > CH_PARTITIONER_MAX_SIZE)
        return ch__fail(CH_INVALID_ARGUMENT, "kind is %d, want a ch_partitioner_kind",
                        (int)p->kind);
    if (p->shards < fewest)
        return ch__fail(CH_INVALID_ARGUMENT, "%s is %d, want %d or more",
                        p->kind == CH_PARTITIONER_FIXED ? "shards" : "max_shards", p->shards,
                        fewest);
    if (p->kind != CH_PARTITIONER_FIXED && p->shard_bytes < least)
        return ch__fail(CH_INVALID_ARGUMENT, "%s_shard_bytes is %lld, want %lld or more",
                        is_max ? "max" : "min", (long long)p->shard_bytes, (long long)least);
    if (p->bytes_per_string < 0)
        return ch__fail(CH_INVALID_ARGUMENT, "bytes_per_string is %lld, want 0 or more",
                        (long long)p->bytes_per_string);
    return CH_OK;
}

/* Returns the largest number of shards such that the smallest shard, which has size / n rows,
 * has at least shard_bytes. 0 means 256 KiB. */
static int64_t parts_of_min(const ch_partitioner *p, int64_t size, int64_t row_bytes)
{
    int64_t min = p->shard_bytes != 0 ? p->shard_bytes : 256 << 10;
    int64_t n = size / ((min - 1) / row_bytes + 1);
    int64_t most = p->shards < CH_PARTITIONER_SHARDS ? p->shards : CH_PARTITIONER_SHARDS;

    return n < 1 ? 1 : n < most ? n : most;
}

/* Returns the number of shards of at most shard_bytes each, limited by max_shards (0: no
 * limit). */
static int64_t parts_of_max(const ch_partitioner *p, int64_t size, int64_t row_bytes)
{
    int64_t rows = p->shard_bytes < row_bytes ? 1 : p->shard_bytes / row_bytes;
    int64_t n = (size - 1) / rows + 1;

    return p->shards == 0 || n < p->shards ? n : p->shards;
}

/* Stores the number of parts along p->axis for a variable of `count` elements. Here a row is
 * all elements with the same index of that axis. */
static ch_status find_parts(const ch_partitioner *p, const ch_tensor_spec *of, int64_t count,
                            int64_t *parts)
{
    int64_t   element = (int64_t)ch_dtype_bytes(of->dtype), size, row_bytes;
    int       axis = 0;
    ch_status rc = check_limits(p);

    if (rc != CH_OK)
        return rc;
    if (!ch__axis(p->axis, of->shape.rank, &axis))
        return ch__fail(CH_INVALID_ARGUMENT, "the variable has no axis %d", p->axis);
    if (p->kind == CH_PARTITIONER_FIXED) {
        parts[axis] = p->shards;
        return CH_OK;
    }
    if (count == 0) /* an empty variable is not divided */
        return CH_OK;
    size = of->shape.dim[axis];
    if (of->dtype == CH_STR && p->bytes_per_string != 0)
        element = p->bytes_per_string;
    if (__builtin_mul_overflow(count / size, element, &row_bytes))
        row_bytes = INT64_MAX;
    parts[axis] = p->kind == CH_PARTITIONER_MIN_SIZE ? parts_of_min(p, size, row_bytes)
                                                     : parts_of_max(p, size, row_bytes);
    return CH_OK;
}

/* ---- dividing a variable ---- */

/* Calls the program's function. */
static ch_status call_fn(const ch_partitioner *p, const ch_tensor_spec *of, int64_t *parts)
{
    uint64_t mark = ch__fail_mark();

    return ch__fail_since(mark, p->fn(p->arg, of, parts));
}

/* Checks the numbers of parts and stores them in the layout. Leaves the layout unchanged if the
 * variable is not divided. */
static ch_status set_parts(ch_shape shape, const int64_t *parts, ch_layout *out)
{
    int     cut = -1;
    int64_t n;

    for (int i = 0; i < CH_MAX_RANK; i++) {
        if (parts[i] == 1)
            continue;
        if (i >= shape.rank)
            return ch__fail(
                CH_INVALID_ARGUMENT,
                "it returned %lld parts for axis %d, which the variable does not have",
                (long long)parts[i], i);
        if (parts[i] < 1)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "it returned %lld parts for axis %d, want 1 or more",
                            (long long)parts[i], i);
        if (cut >= 0)
            return ch__fail(
                CH_INVALID_ARGUMENT,
                "it returned %lld parts for axis %d and %lld for axis %d; a variable "
                "is divided along one axis",
                (long long)parts[cut], cut, (long long)parts[i], i);
        cut = i;
    }
    if (cut < 0)
        return CH_OK;
    n = parts[cut] < shape.dim[cut] ? parts[cut] : shape.dim[cut];
    if (n > CH_PARTITIONER_SHARDS)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%lld shards along axis %d, want at most %d; use larger shards",
                        (long long)n, cut, CH_PARTITIONER_SHARDS);
    if (n > 1)
        out->parts[cut] = (int)n;
    return CH_OK;
}

/* Computes the parts of a variable with the partitioner. Scalars are never divided. */
static ch_status decide(const ch_partitioner *p, const ch_tensor_spec *of, ch_layout *out)
{
    int64_t   parts[CH_MAX_RANK], count, bytes;
    ch_status rc = ch__tensor_size(of->dtype, of->shape, &count, &bytes);

    if (rc != CH_OK || p == NULL || of->shape.rank == 0 ||
        (p->kind == CH_PARTITIONER_CALL && p->fn == NULL))
        return rc;
    for (int i = 0; i < CH_MAX_RANK; i++)
        parts[i] = 1;
    rc = p->kind == CH_PARTITIONER_CALL ? call_fn(p, of, parts)
                                        : find_parts(p, of, count, parts);
    return rc == CH_OK ? set_parts(of->shape, parts, out) : rc;
}

ch_status ch_partitioner_divide(const ch_partitioner *p, const ch_tensor_spec *of,
                                ch_layout *out)
{
    ch_layout l = {.parts = {0}};
    char      text[256];
    ch_status rc = ch__check_not_null("partitioner", "the variable's spec", of, "out", out);

    if (rc != CH_OK)
        return rc;
    rc = decide(p, of, &l);
    if (rc != CH_OK) {
        ch_tensor_spec_print(of, text, sizeof(text));
        return ch__fail_at(rc, "partitioner, for variable %s", text);
    }
    memcpy(out->parts, l.parts, sizeof(out->parts));
    return CH_OK;
}
