/* spmd/annotate.c -- the op of annotations.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "spmd/annotate.h"

#include <string.h>

#include "ops/ops.h"

typedef struct with_layout_attrs {
    int64_t kind; /* ch_annotation */
    ch_ints at;
} with_layout_attrs;

static const ch_attr with_layout_rows[] = {
    CH_ATTR_INT(with_layout_attrs, kind),
    CH_ATTR_INTS(with_layout_attrs, at),
    CH_ATTR_END,
};

/* Returns true if all numbers of the attributes are in [least, most]. */
static bool are_in(const ch_ints *at, int64_t least, int64_t most)
{
    for (int i = 0; i < at->n; i++)
        if (at->at[i] < least || at->at[i] > most)
            return false;
    return true;
}

/* Returns true if the attributes make sense for a value of this rank, on some number of
 * cores. */
static bool is_valid(const with_layout_attrs *a, int rank)
{
    switch (a->kind) {
    case CH_ANNOTATION_SPLIT:
        return a->at.n == rank && are_in(&a->at, 1, CH_MAX_CORES);
    case CH_ANNOTATION_REPLICATE:
        return a->at.n == 0;
    case CH_ANNOTATION_ASSIGN:
        return a->at.n == 1 && are_in(&a->at, 0, CH_MAX_CORES - 1);
    case CH_ANNOTATION_MESH:
        return a->at.n == rank && are_in(&a->at, CH_MESH_ALL, CH_MESH_AXES_MAX - 1);
    }
    return false;
}

/* Graphs may come from a message. logical.c has given better messages for those of a step. */
static ch_status with_layout_infer(ch_infer *c)
{
    const with_layout_attrs *a = c->attrs;

    if (!is_valid(a, c->in[0].rank))
        return ch__infer_fail(c,
                              "an annotation of kind %lld with %d numbers, which does not "
                              "fit rank %d",
                              (long long)a->kind, a->at.n, c->in[0].rank);
    return ch__infer_like(c, 0, 0);
}

static void with_layout_grad(ch_step *s, const ch_node *n, ch_node *const dout[],
                             ch_node *din[])
{
    (void)s;
    din[0] = ch__node(&ch__op_with_layout, ch__attrs(n), 1, dout);
}

const ch_op ch__op_with_layout = {
    .name = "with_layout",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .flags = CH_OP_UNNUMBERED,
    .attrs = with_layout_rows,
    .attrs_bytes = sizeof(with_layout_attrs),
    .infer = with_layout_infer,
    .grad = with_layout_grad,
    .factors = ch__factors_elementwise,
    .kernels = (const ch_kernel *const[]){&ch__kernel_view, NULL},
    .room = CH_ROOM_ANY,
};

ch_node *ch__annotate(const void *caller, ch_node *x, ch_annotation kind, int n, const int *at)
{
    with_layout_attrs a = {.kind = kind, .at = {.n = n}};

    for (int i = 0; i < n && i < CH_MAX_INTS; i++)
        a.at.at[i] = at[i];
    return ch__node_at(caller, &ch__op_with_layout, &a, 1, &x);
}

/* Sets *out to the layout of an annotation of an array of this rank. */
static ch_status layout_of(const ch_spmd_options *opt, const with_layout_attrs *a, int rank,
                           ch_core_layout *out)
{
    int     at[CH_MAX_RANK] = {0};
    int64_t product = 1;

    for (int i = 0; i < a->at.n; i++) {
        at[i] = (int)a->at.at[i];
        product *= product <= opt->n_cores ? at[i] : 1;
    }
    switch (a->kind) {
    case CH_ANNOTATION_SPLIT:
        if (product != opt->n_cores)
            break;
        ch__layout_split(opt->n_cores, rank, at, out);
        return CH_OK;
    case CH_ANNOTATION_ASSIGN:
        if (at[0] >= opt->n_cores)
            break;
        ch__layout_on_core(opt->n_cores, rank, at[0], out);
        return CH_OK;
    case CH_ANNOTATION_MESH:
        return ch__layout_over_mesh("annotation", opt->n_mesh, opt->mesh, rank, at, out);
    default:
        ch__layout_replicated(opt->n_cores, rank, out);
        return CH_OK;
    }
    return ch__fail(CH_INVALID_ARGUMENT,
                    "annotation: it was recorded for another number of logical devices than %d",
                    opt->n_cores);
}

ch_status ch__annotated_layout(const ch_spmd_options *opt, const ch_node *call,
                               ch_core_layout *out)
{
    ch_status rc = layout_of(opt, ch__attrs(call), call->dims.rank, out);

    return rc == CH_OK ? CH_OK : ch__fail_in_call(rc, call);
}
