/* test/strategy/source.h -- tensors in memory as sources of values, and one strategy of each
 * kind.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_STRATEGY_SOURCE_H
#define TEST_STRATEGY_SOURCE_H

#include "../job/help.h"
#include "base/fault.h"
#include "strategy/strategy.h"
#include "tensor/tensor.h"

/* ---- sources ---- */

/* A value in memory that counts how it is read. */
typedef struct t_source {
    ch_tensor    *value; /* borrowed; contiguous */
    atomic_int    n_reads;
    atomic_llong  n_elements; /* that were read */
    atomic_llong  largest;    /* elements of the largest region */
    int           fail_at;    /* number of the read that fails, from 1 on; 0: none */
    const ch_var *in_shards; /* each region must be inside a shard of this; NULL: not checked */
} t_source;

/* Returns true if the region is inside a part of the layout of v. */
static inline bool t_is_in_a_shard(const ch_var *v, const ch_region *region)
{
    int rank = v->shape.rank;

    for (int i = 0; i < ch__layout_parts(v->layout); i++) {
        ch_region part, both;

        ch__layout_region(v->layout, v->shape, i, &part);
        if (ch__region_intersect(&part, region, rank, &both))
            return ch__region_count(&both, rank) == ch__region_count(region, rank);
    }
    return false;
}

static inline ch_status t_source_read(void *arg, const ch_region *region, void *to)
{
    t_source  *s = arg;
    int        rank = s->value->shape.rank;
    long long  n = ch__region_count(region, rank), largest = atomic_load(&s->largest);
    ch_tensor *view = NULL, *copy = NULL;
    ch_status  rc;

    if (atomic_fetch_add(&s->n_reads, 1) + 1 == s->fail_at)
        return ch__fail(CH_DATA_LOSS, "the source cannot be read");
    atomic_fetch_add(&s->n_elements, n);
    while (n > largest && !atomic_compare_exchange_weak(&s->largest, &largest, n))
        ;
    if (s->in_shards != NULL && !t_is_in_a_shard(s->in_shards, region))
        return ch__fail(CH_INTERNAL, "the region is not inside a shard");
    rc = ch__tensor_region(s->value, region, &view);
    if (rc == CH_OK)
        rc = ch_tensor_contiguous(view, &copy);
    if (rc == CH_OK)
        memcpy(to, copy->data, ch_tensor_bytes(copy));
    ch_tensor_unref(view);
    ch_tensor_unref(copy);
    return rc;
}

static inline ch_value_source t_source_of(t_source *s)
{
    return (ch_value_source){.name = "tensor \"saved\" of run/ckpt-7",
                             .dtype = s->value->dtype,
                             .shape = s->value->shape,
                             .read = t_source_read,
                             .arg = s};
}

/* Returns a tensor of arbitrary bits; elements of CH_BOOL are 0 or 1. */
static inline ch_tensor *t_bits(ch_dtype dtype, ch_shape shape, uint64_t seed)
{
    ch_tensor *t = NULL;

    t_ok(ch_tensor_new(dtype, shape, &t));
    for (size_t i = 0, n = ch_tensor_bytes(t); i < n; i += sizeof(seed)) {
        uint64_t word;

        seed = seed * 6364136223846793005u + 1442695040888963407u;
        word = dtype == CH_BOOL ? seed >> 7 & 0x0101010101010101u : seed ^ seed >> 29;
        memcpy(t->data + i, &word, n - i < sizeof(word) ? n - i : sizeof(word));
    }
    return t;
}

static inline void t_same_bits(const ch_tensor *is, const ch_tensor *want, const char *what)
{
    assert_int_equal(is->dtype, want->dtype);
    assert_true(ch_shape_equal(is->shape, want->shape));
    if (memcmp(is->data, want->data, ch_tensor_bytes(want)) != 0)
        fail_msg("%s: the bits differ", what);
}

/* Checks the value of v and, if it is in this process and not per-replica, of each copy. */
static inline void t_has_bits(ch_var *v, const ch_tensor *want, const char *what)
{
    ch_tensor *is = NULL;

    t_ok(ch__var_get(v, &is));
    t_same_bits(is, want, what);
    ch_tensor_unref(is);
    for (int i = 0; ch__var_is_local(v) && !ch__var_is_per_replica(v) && i < v->n_copies; i++)
        t_same_bits(v->copy[i], want, what);
}

/* ---- strategies ---- */

enum { T_DEFAULT, T_ONE, T_MIRRORED, T_CENTRAL, T_SERVERS, T_SHARDS, T_COLUMNS, T_STRATEGIES };

static const char *const t_strategy_name[T_STRATEGIES] = {
    "Default",         "OneDevice", "Mirrored",         "CentralStorage",
    "ParameterServer", "shards",    "shards of columns"};

/* Returns a new strategy of a kind. The tests configure four GPUs. */
static inline ch_strategy *t_strategy(int which)
{
    ch_local_cluster_options    local = {.ps = 3, .workers = 1};
    ch_parameter_server_options opt = {.placement = 0};
    ch_strategy                *st = NULL;

    if (which == T_DEFAULT)
        return ch_strategy_ref(ch__strategy_default());
    if (which == T_ONE)
        t_ok(ch_strategy_one_device("GPU:2", &st));
    if (which == T_MIRRORED)
        return t_mirrored(2);
    if (which == T_CENTRAL)
        return t_central(2);
    if (which >= T_SHARDS) {
        opt.partitioner = ch_partitioner_fixed(3);
        opt.partitioner.axis = which == T_COLUMNS;
    }
    if (which >= T_SERVERS)
        st = t_cluster(&local, &opt, NULL);
    return st;
}

#endif
