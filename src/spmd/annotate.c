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

static ch_status with_layout_infer(ch_infer *c)
{
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

ch_status ch__annotated_layout(const ch_spmd_options *opt, const ch_node *call,
                               ch_core_layout *out)
{
    const with_layout_attrs *a = ch__attrs(call);
    int                      rank = call->dims.rank, at[CH_MAX_RANK] = {0};
    int64_t                  product = 1;

    for (int i = 0; i < a->at.n && i < CH_MAX_RANK; i++) {
        at[i] = (int)a->at.at[i];
        product *= a->kind == CH_ANNOTATION_SPLIT ? at[i] : 1;
    }
    switch ((ch_annotation)a->kind) {
    case CH_ANNOTATION_SPLIT:
        if (a->at.n != rank || product != opt->n_cores)
            break;
        ch__layout_split(opt->n_cores, rank, at, out);
        return CH_OK;
    case CH_ANNOTATION_REPLICATE:
        ch__layout_replicated(opt->n_cores, rank, out);
        return CH_OK;
    case CH_ANNOTATION_ASSIGN:
        if (at[0] < 0 || at[0] >= opt->n_cores)
            break;
        ch__layout_on_core(opt->n_cores, rank, at[0], out);
        return CH_OK;
    case CH_ANNOTATION_MESH:
        if (a->at.n != rank)
            break;
        return ch__layout_over_mesh("ch_mesh_split", opt->n_mesh, opt->mesh, rank, at, out);
    }
    return ch__fail(CH_INVALID_ARGUMENT,
                    "annotation of a value of rank %d: it does not fit a replica of %d cores",
                    rank, opt->n_cores);
}
