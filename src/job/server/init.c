/* job/server/init.c -- packs and computes initial values (init.h).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "job/server/init.h"

#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "kernel/init.h"
#include "tensor/tensor.h"

/* Names in messages. They must not change. */
static const char *const kinds[] = {
    [CH_INIT_ZEROS] = "zeros",
    [CH_INIT_CONSTANT] = "constant",
    [CH_INIT_UNIFORM] = "uniform",
    [CH_INIT_NORMAL] = "normal",
    [CH_INIT_TRUNCATED_NORMAL] = "truncated_normal",
    [CH_INIT_FAN_UNIFORM] = "fan_uniform",
    [CH_INIT_FAN_NORMAL] = "fan_normal",
    [CH_INIT_ORTHOGONAL] = "orthogonal",
    [CH_INIT_IDENTITY] = "identity",
};
static const char *const fans[] = {
    [CH_FAN_IN] = "in", [CH_FAN_OUT] = "out", [CH_FAN_AVERAGE] = "average"};

void ch__init_spec_pack(ch_init_spec *f, ch_layout l, int shard, Cohort__PsInit *out)
{
    int       axis = ch__layout_axis(l);
    ch_region region;

    cohort__ps_init__init(out);
    (void)snprintf(f->kind, sizeof(f->kind), "%s", kinds[f->init->kind]);
    (void)snprintf(f->fan, sizeof(f->fan), "%s", fans[f->init->fan]);
    (void)snprintf(f->type, sizeof(f->type), "%s", ch_dtype_name(f->dtype));
    out->kind = f->kind;
    out->fan = f->fan;
    out->dtype = f->type;
    out->a = f->init->a;
    out->b = f->init->b;
    out->seed = f->init->seed;
    out->name = f->name;
    out->n_shape = (size_t)f->whole.rank;
    out->shape = f->whole.dim;
    ch__layout_region(l, f->whole, shard, &region);
    out->axis = (uint32_t)axis;
    if (f->whole.rank > axis) {
        out->begin = region.begin[axis];
        out->size = region.size[axis];
    }
}

/* ---- computing from an untrusted message ---- */

/* Returns the index of a word in a list; -1: not found. */
static int find(const char *word, const char *const *list, int n)
{
    for (int i = 0; i < n; i++)
        if (strcmp(word, list[i]) == 0)
            return i;
    return -1;
}

static ch_status read_init(const Cohort__PsInit *m, ch_init *out)
{
    int kind = find(m->kind, kinds, sizeof(kinds) / sizeof(kinds[0]));
    int fan = find(m->fan, fans, sizeof(fans) / sizeof(fans[0]));

    if (kind < 0 || fan < 0)
        return ch__fail(CH_INVALID_ARGUMENT, "unknown initializer \"%.40s\" with fan \"%.40s\"",
                        m->kind, m->fan);
    *out = (ch_init){
        .kind = (ch_init_kind)kind, .fan = (ch_fan)fan, .a = m->a, .b = m->b, .seed = m->seed};
    return ch__init_has_parts(out)
               ? CH_OK
               : ch__fail(CH_INVALID_ARGUMENT,
                          "initializer %s cannot be computed in parts; send the values",
                          m->kind);
}

/* Decodes the shape of the whole variable, and the shape and the begin of the part to
 * compute. */
static ch_status read_shapes(const Cohort__PsInit *m, ch_shape *whole, ch_shape *part,
                             int64_t begin[CH_MAX_RANK])
{
    int64_t size;

    if (m->n_shape > CH_MAX_RANK)
        return ch__fail(CH_INVALID_ARGUMENT, "%zu axes, want at most %d", m->n_shape,
                        CH_MAX_RANK);
    *part = *whole = ch_shape_make((int)m->n_shape, m->shape);
    for (size_t i = 0; i < m->n_shape; i++)
        if (m->shape[i] < 0)
            return ch__fail(CH_INVALID_ARGUMENT, "size %lld of axis %zu is negative",
                            (long long)m->shape[i], i);
    if (m->n_shape == 0)
        return m->axis == 0 && m->begin == 0 && m->size == 0
                   ? CH_OK
                   : ch__fail(CH_INVALID_ARGUMENT,
                              "a scalar has no axis, so begin and size must be 0");
    size = m->axis < m->n_shape ? m->shape[m->axis] : -1;
    if (m->begin < 0 || m->size < 0 || m->begin > size || m->size > size - m->begin)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "part of %lld from %lld on is not inside the %lld along axis %u",
                        (long long)m->size, (long long)m->begin, (long long)size, m->axis);
    part->dim[m->axis] = m->size;
    begin[m->axis] = m->begin;
    return CH_OK;
}

ch_status ch__init_spec_compute(const Cohort__PsInit *m, ch_device *device,
                                int64_t max_init_bytes, ch_tensor **out)
{
    ch_init   init;
    ch_dtype  dtype = CH_F32;
    ch_shape  whole, part;
    int64_t   count, bytes = 0, begin[CH_MAX_RANK] = {0};
    ch_status rc = read_init(m, &init);

    if (rc == CH_OK)
        rc = ch_dtype_parse(m->dtype, &dtype);
    if (rc == CH_OK)
        rc = read_shapes(m, &whole, &part, begin);
    if (rc == CH_OK) /* so that indices in the whole variable do not overflow */
        rc = ch__tensor_size(dtype, whole, &count, &bytes);
    if (rc == CH_OK)
        rc = ch__tensor_size(dtype, part, &count, &bytes);
    if (rc == CH_OK)
        rc = ch__init_check(&init, dtype, whole);
    if (rc == CH_OK && max_init_bytes > 0 && bytes > max_init_bytes)
        rc = ch__fail(CH_RESOURCE_EXHAUSTED,
                      "%lld bytes, the limit of this server is %lld; use more shards or more "
                      "servers",
                      (long long)bytes, (long long)max_init_bytes);
    if (rc == CH_OK)
        rc = ch_tensor_new_on(device, dtype, part, out);
    if (rc == CH_OK)
        ch__init_part(&init, m->name, whole, begin, *out);
    return rc;
}
