/* kernel/conv_onednn.c -- convolution by oneDNN. Images stay in our layout (NHWC). The filter
 * is reordered to the layout that oneDNN chooses.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"
#include "kernel/conv.h"
#include "kernel/engine.h"

#if CH_HAVE_ONEDNN

typedef struct conv {
    ch_dnn      *run;
    ch_dnn      *reorder; /* reorders the filter to or from our layout; NULL: same layout */
    ch_conv_kind kind;
    size_t       filter_at; /* offset of the filter gradient in the scratch memory */
} conv;

typedef struct layouts {
    dnnl_memory_desc_t x, y, ours, any; /* layouts of the filter: ours, and chosen by oneDNN */
} layouts;

static ch_status describe_arrays(const ch_conv_dims *d, layouts *m)
{
    int64_t     g = d->groups, i = d->c / g;
    dnnl_dims_t x = {d->n, d->c, d->h, d->w}, y = {d->n, d->o, d->oh, d->ow};
    dnnl_dims_t f = {g, d->o / g, i, d->kh, d->kw};
    dnnl_dims_t step = {d->o / g, 1, d->o, d->kw * i * d->o, i * d->o};
    int         skip = g == 1; /* without groups oneDNN expects no group axis */

    if (!ch__dnn_supports(4, x) || !ch__dnn_supports(4, y) || !ch__dnn_supports(5, f) ||
        !ch__dnn_supports(2, d->stride) || !ch__dnn_supports(2, d->spread))
        return ch__fail(CH_UNIMPLEMENTED, "convolution: oneDNN does not support these sizes");
    if (dnnl_memory_desc_init_by_tag(&m->x, 4, x, dnnl_f32, dnnl_nhwc) != dnnl_success ||
        dnnl_memory_desc_init_by_tag(&m->y, 4, y, dnnl_f32, dnnl_nhwc) != dnnl_success ||
        dnnl_memory_desc_init_by_strides(&m->ours, 5 - skip, f + skip, dnnl_f32, step + skip) !=
            dnnl_success ||
        dnnl_memory_desc_init_by_tag(&m->any, 5 - skip, f + skip, dnnl_f32,
                                     dnnl_format_tag_any) != dnnl_success)
        return ch__fail(CH_UNIMPLEMENTED, "convolution: oneDNN rejects these sizes or strides");
    return CH_OK;
}

static dnnl_status_t describe_sum(ch_conv_kind kind, const ch_conv_dims *d, const layouts *m,
                                  dnnl_convolution_desc_t *out)
{
    dnnl_dims_t stride = {d->stride[0], d->stride[1]};
    dnnl_dims_t between = {d->spread[0] - 1, d->spread[1] - 1}, before = {d->pad[0], d->pad[1]};
    dnnl_dims_t after = {
        (d->oh - 1) * d->stride[0] + (d->kh - 1) * d->spread[0] + 1 - d->h - d->pad[0],
        (d->ow - 1) * d->stride[1] + (d->kw - 1) * d->spread[1] + 1 - d->w - d->pad[1]};

    if (kind == CH_CONV_OUTPUT)
        return dnnl_dilated_convolution_forward_desc_init(
            out, dnnl_forward_training, dnnl_convolution_direct, &m->x, &m->any, NULL, &m->y,
            stride, between, before, after);
    if (kind == CH_CONV_INPUT)
        return dnnl_dilated_convolution_backward_data_desc_init(out, dnnl_convolution_direct,
                                                                &m->x, &m->any, &m->y, stride,
                                                                between, before, after);
    return dnnl_dilated_convolution_backward_weights_desc_init(out, dnnl_convolution_direct,
                                                               &m->x, &m->any, NULL, &m->y,
                                                               stride, between, before, after);
}

/* Describes the convolution to oneDNN. The description of a gradient requires that of the
 * forward convolution. */
static ch_status describe(ch_conv_kind kind, const ch_conv_dims *d, layouts *m,
                          dnnl_primitive_desc_t *out)
{
    dnnl_convolution_desc_t desc;
    dnnl_primitive_desc_t   forward = NULL;
    ch_status               rc = describe_arrays(d, m);

    if (rc == CH_OK && kind != CH_CONV_OUTPUT)
        rc = describe(CH_CONV_OUTPUT, d, m, &forward);
    if (rc == CH_OK && describe_sum(kind, d, m, &desc) != dnnl_success)
        rc = ch__fail(CH_UNIMPLEMENTED, "convolution: oneDNN rejects these sizes or strides");
    if (rc == CH_OK)
        rc = ch__dnn_describe(&desc, false, forward, out);
    if (forward != NULL)
        dnnl_primitive_desc_destroy(forward);
    return rc;
}

static bool onednn_fits(ch_conv_kind kind, ch_dtype dtype, const ch_conv_dims *d)
{
    layouts               m;
    dnnl_primitive_desc_t pd = NULL;

    if (dtype != CH_F32 || d->n == 0 || d->c == 0 || d->h == 0 || d->w == 0 || d->o == 0 ||
        d->oh == 0 || d->ow == 0 || d->kh == 0 || d->kw == 0 || !ch__onednn_is_on() ||
        describe(kind, d, &m, &pd) != CH_OK)
        return false;
    dnnl_primitive_desc_destroy(pd);
    return true;
}

/* The oneDNN arguments of each kind, in our order (a, b, out). */
static const int arguments[3][3] = {
    [CH_CONV_OUTPUT] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
    [CH_CONV_INPUT] = {DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_SRC},
    [CH_CONV_FILTER] = {DNNL_ARG_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_WEIGHTS},
};

static void onednn_close(void *state)
{
    conv *v = state;

    if (v == NULL)
        return;
    ch__dnn_free(v->run);
    ch__dnn_free(v->reorder);
    ch__free(v);
}

static ch_status open_primitives(conv *v, const layouts *m, const_dnnl_primitive_desc_t pd,
                                 ch_conv_needs *needs)
{
    bool                      makes_filter = v->kind == CH_CONV_FILTER;
    const dnnl_memory_desc_t *filter = dnnl_primitive_desc_query_md(
        pd, makes_filter ? dnnl_query_diff_weights_md : dnnl_query_weights_md, 0);
    const dnnl_memory_desc_t *md[3][3] = {[CH_CONV_OUTPUT] = {&m->x, filter, &m->y},
                                          [CH_CONV_INPUT] = {&m->y, filter, &m->x},
                                          [CH_CONV_FILTER] = {&m->x, &m->y, filter}};
    ch_dnn_arg                arg[3];
    ch_status                 rc;

    for (int i = 0; i < 3; i++)
        arg[i] = (ch_dnn_arg){arguments[v->kind][i], md[v->kind][i]};
    rc = ch__dnn_new(pd, 3, arg, &v->run);
    if (rc != CH_OK)
        return rc;
    needs->scratch_bytes = ch__dnn_scratch_bytes(v->run);
    if (dnnl_memory_desc_equal(filter, &m->ours))
        return CH_OK;
    if (makes_filter) {
        v->filter_at = ch__aligned(needs->scratch_bytes);
        needs->scratch_bytes = v->filter_at + dnnl_memory_desc_get_size(filter);
        return ch__dnn_reorder(filter, &m->ours, &v->reorder);
    }
    needs->filter_bytes = dnnl_memory_desc_get_size(filter);
    return ch__dnn_reorder(&m->ours, filter, &v->reorder);
}

static ch_status onednn_open(ch_conv_kind kind, ch_dtype dtype, const ch_conv_dims *d,
                             ch_conv_needs *needs, void **state)
{
    layouts               m;
    dnnl_primitive_desc_t pd = NULL;
    conv                 *v = ch__calloc(1, sizeof(*v));
    ch_status rc = v == NULL ? ch__fail_memory("convolution") : describe(kind, d, &m, &pd);

    (void)dtype;
    if (rc == CH_OK) {
        v->kind = kind;
        rc = open_primitives(v, &m, pd, needs);
        dnnl_primitive_desc_destroy(pd);
    }
    if (rc != CH_OK) {
        onednn_close(v);
        return rc;
    }
    *state = v;
    return CH_OK;
}

static ch_status onednn_pack(const void *state, const void *filter, void *packed)
{
    const conv *v = state;

    return ch__dnn_run(v->reorder, (const void *const[]){filter, packed}, NULL);
}

static ch_status onednn_run(const void *state, const void *a, const void *b, void *out,
                            void *scratch)
{
    const conv *v = state;
    bool        reorders = v->kind == CH_CONV_FILTER && v->reorder != NULL;
    void       *to = reorders ? (char *)scratch + v->filter_at : out;
    ch_status   rc = ch__dnn_run(v->run, (const void *const[]){a, b, to}, scratch);

    if (rc == CH_OK && reorders)
        rc = ch__dnn_run(v->reorder, (const void *const[]){to, out}, NULL);
    return rc;
}

const ch_conv_engine ch__conv_onednn = {"onednn",    onednn_fits, onednn_open,
                                        onednn_pack, onednn_run,  onednn_close};
#else
static bool never_fits(ch_conv_kind kind, ch_dtype dtype, const ch_conv_dims *d)
{
    (void)kind, (void)dtype, (void)d;
    return false;
}

const ch_conv_engine ch__conv_onednn = {"onednn", never_fits, NULL, NULL, NULL, NULL};
#endif
