/* strategy/logical.c -- annotations of values for logical devices (cohort/logical.h).
 *
 * The functions check their arguments while the step is recorded, where the strategy is known,
 * and record the op of spmd/annotate.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cohort/logical.h"

#include <limits.h>

#include "graph/step.h"
#include "spmd/annotate.h"
#include "strategy/strategy.h"
#include "tensor/print.h"

/* Returns the strategy that records the step of x. */
static const ch_strategy *strategy_of(const ch_node *x)
{
    ch_step *s = x != NULL ? ch_node_step(x) : NULL;

    return s != NULL ? ch__step_outermost(s)->owner : NULL;
}

/* Returns true if x is in a replica with several cores, so that an annotation must be
 * recorded. */
static bool has_cores(const ch_node *x)
{
    const ch_strategy *st = strategy_of(x);

    return st != NULL && ch__strategy_cores(st) > 1;
}

static ch_node *reject(const void *caller, ch_node *x, ch_status rc)
{
    ch__step_record_error(ch_node_step(x), rc, caller);
    return NULL;
}

/* An annotation as text, to begin messages, such as
 * "ch_mesh_split: f32(rows, 8) as {0, 1} on 4 logical devices". */
typedef struct subject {
    char text[256];
} subject;

static subject subject_of(const char *call, const ch_node *x, bool is_mesh, int n,
                          const int *at)
{
    subject s;
    ch_text o = ch__text(s.text, sizeof(s.text));

    ch__text_add(&o, "%s: %s as {", call, ch__type_text(x->dtype, &x->dims));
    for (int i = 0; i < n && i < CH_MAX_RANK; i++) {
        const char *before = i > 0 ? ", " : "";

        if (is_mesh && (at[i] == CH_OFF || at[i] == CH_MESH_ALL))
            ch__text_add(&o, "%s%s", before, at[i] == CH_OFF ? "CH_OFF" : "CH_MESH_ALL");
        else
            ch__text_add(&o, "%s%d", before, at[i]);
    }
    ch__text_add(&o, "%s} on %d logical devices", n > CH_MAX_RANK ? ", .." : "",
                 ch__strategy_cores(strategy_of(x)));
    return s;
}

static ch_status check_rank(const subject *s, const ch_node *x, int n)
{
    if (n == x->dims.rank)
        return CH_OK;
    return ch__fail(CH_INVALID_ARGUMENT,
                    "%s: the value has rank %d, but there are %d numbers; give one for each "
                    "axis",
                    s->text, x->dims.rank, n);
}

static ch_status check_parts(const subject *s, const ch_node *x, const int *parts)
{
    int     cores = ch__strategy_cores(strategy_of(x));
    int64_t product = 1;

    for (int i = 0; i < x->dims.rank; i++) {
        if (parts[i] < 1)
            return ch__fail(CH_INVALID_ARGUMENT, "%s: axis %d in %d parts (want 1 or more)",
                            s->text, i, parts[i]);
        if (product <= INT_MAX) /* a larger product does not get smaller */
            product *= parts[i];
    }
    if (product != cores)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: the product of the parts is %lld, want %d, the number of logical "
                        "devices of a replica",
                        s->text, (long long)product, cores);
    for (int i = 0; i < x->dims.rank; i++)
        if (x->dims.dim[i].sym == 0 && x->dims.dim[i].n % parts[i] != 0)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "%s: axis %d of size %lld is not divisible into %d parts", s->text,
                            i, (long long)x->dims.dim[i].n, parts[i]);
    return CH_OK;
}

ch_node *ch_split_to_logical_devices(ch_node *x, int n, const int *parts)
{
    const void *caller = __builtin_return_address(0);
    subject     s;
    ch_status   rc;

    if (x == NULL)
        return ch__null_input_at(caller, __func__, 1, &x);
    if (!has_cores(x))
        return x;
    if (parts == NULL && n > 0)
        return reject(caller, x, ch__fail(CH_INVALID_ARGUMENT, "%s: parts is NULL", __func__));
    s = subject_of(__func__, x, false, n, parts);
    rc = check_rank(&s, x, n);
    if (rc == CH_OK)
        rc = check_parts(&s, x, parts);
    return rc == CH_OK ? ch__annotate(caller, x, CH_ANNOTATION_SPLIT, n, parts)
                       : reject(caller, x, rc);
}

ch_node *ch_replicate_to_logical_devices(ch_node *x)
{
    const void *caller = __builtin_return_address(0);

    if (x == NULL)
        return ch__null_input_at(caller, __func__, 1, &x);
    return has_cores(x) ? ch__annotate(caller, x, CH_ANNOTATION_REPLICATE, 0, NULL) : x;
}

ch_node *ch_assign_to_logical_device(ch_node *x, int device)
{
    const void *caller = __builtin_return_address(0);
    int         cores;

    if (x == NULL)
        return ch__null_input_at(caller, __func__, 1, &x);
    if (!has_cores(x))
        return x;
    cores = ch__strategy_cores(strategy_of(x));
    if (strategy_of(x)->parts.forbids_single_devices)
        return reject(caller, x,
                      ch__fail(CH_INVALID_ARGUMENT,
                               "%s: %s: device %d: all logical devices of %s compute every "
                               "value together; use ch_split_to_logical_devices, or a strategy "
                               "without ch_tpu_options.spmd",
                               __func__, ch__type_text(x->dtype, &x->dims), device,
                               strategy_of(x)->label));
    if (device < 0 || device >= cores)
        return reject(caller, x,
                      ch__fail(CH_INVALID_ARGUMENT, "%s: %s: device %d (want 0 to %d)",
                               __func__, ch__type_text(x->dtype, &x->dims), device, cores - 1));
    return ch__annotate(caller, x, CH_ANNOTATION_ASSIGN, 1, &device);
}

ch_node *ch_mesh_split(ch_node *x, int n, const int *axis)
{
    const void        *caller = __builtin_return_address(0);
    const ch_strategy *st = strategy_of(x);
    ch_core_layout     l;
    subject            s;
    ch_status          rc;

    if (x == NULL)
        return ch__null_input_at(caller, __func__, 1, &x);
    if (!has_cores(x))
        return x;
    if (axis == NULL && n > 0)
        return reject(caller, x, ch__fail(CH_INVALID_ARGUMENT, "%s: axis is NULL", __func__));
    s = subject_of(__func__, x, true, n, axis);
    rc = check_rank(&s, x, n);
    if (rc == CH_OK)
        rc = ch__layout_over_mesh(s.text, st->parts.n_mesh, st->parts.mesh, n, axis, &l);
    return rc == CH_OK ? ch__annotate(caller, x, CH_ANNOTATION_MESH, n, axis)
                       : reject(caller, x, rc);
}
