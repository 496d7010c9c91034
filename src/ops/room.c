/* ops/room.c -- fill_room: gives the room of flat values a defined content.
 *
 * The memory after the last flat value is room (graph/room.h). fill_room copies the live rows
 * and sets the others to a number. Specialisation inserts it before calls that mix rows, such
 * as a product that sums over axis 0. ch__without_room records it for lists that have no room,
 * such as the ids of a sparse gradient. Then the output has a size symbol of its own, because
 * its length is the capacity.
 *
 * The input and the output may have different numbers of rows. This happens on the worker of a
 * parameter server, where the ids and the rows of a gradient may come from programs that have
 * been planned for different capacities.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdalign.h>
#include <string.h>

#include "graph/step.h"
#include "ops/box.h"
#include "ops/lookup.h"
#include "ops/ops.h"
#include "tensor/tensor.h"

static const ch_attr fill_room_rows[] = {
    CH_ATTR_FLOAT(ch_fill_attrs, value),
    CH_ATTR_BOOL(ch_fill_attrs, without_room),
    CH_ATTR_DIMS(ch_fill_attrs, rows),
    CH_ATTR_END,
};

static ch_status fill_room_infer(ch_infer *c)
{
    const ch_fill_attrs *a = c->attrs;
    ch_dims              d = c->in[0];
    ch_status            rc = ch__infer_check_dims(c, &a->rows);

    if (rc != CH_OK)
        return rc;
    if (d.rank < 1)
        return ch__infer_fail(c, "a scalar has no rows");
    if (c->dtype[0] == CH_STR || !ch__dtype_holds(c->dtype[0], a->value))
        return ch__infer_fail(c, "%s does not hold %g", ch_dtype_name(c->dtype[0]), a->value);
    if (a->rows.rank > 1)
        return ch__infer_fail(c, "rows has %d sizes, want at most 1", a->rows.rank);
    if (a->rows.rank == 1)
        d.dim[0] = a->rows.dim[0];
    else if (a->without_room && d.dim[0].sym != 0)
        d.dim[0] = ch__infer_symbol(c);
    return ch__infer_dims(c, 0, c->dtype[0], &d);
}

typedef struct fill_state {
    int64_t n_in, n_out;     /* rows */
    int64_t width;           /* elements of a row */
    size_t  row_bytes, each; /* bytes of a row, of an element */
    int     tiles;
    alignas(8) char value[8]; /* an element */
} fill_state;

static ch_status fill_room_prepare(const ch_node *n, ch_prep *p)
{
    const ch_fill_attrs *a = ch__attrs(n);
    fill_state          *s = ch__prep_state(p, sizeof(*s));

    if (s == NULL)
        return ch__fail_memory("fill_room");
    s->n_in = n->in[0]->dims.dim[0].n;
    s->n_out = n->dims.dim[0].n;
    s->width = 1;
    for (int k = 1; k < n->dims.rank; k++)
        s->width *= n->dims.dim[k].n;
    s->each = ch_dtype_bytes(n->dtype);
    s->row_bytes = (size_t)s->width * s->each;
    ch__store(n->dtype, s->value, a->value);
    s->tiles = ch__move_tiles(s->n_out, ch__bytes(n));
    p->is_view = n->live_input == 0 && s->n_in == s->n_out;
    p->over[0] = s->n_in == s->n_out ? 1 : 0;
    p->n_phases = 1;
    p->tiles[0] = s->tiles;
    return CH_OK;
}

static ch_status fill_room_run(const ch_call *c, ch_kernel_tile t)
{
    const fill_state *s = c->state;
    int64_t           from, to, live = ch__live_rows(c, ch__min(s->n_in, s->n_out));
    char             *out = c->out[0];

    ch__tile_range(s->n_out, s->tiles, t.index, &from, &to);
    live = live < from ? from : live > to ? to : live;
    if (live > from && c->out[0] != c->in[0])
        memcpy(out + (size_t)from * s->row_bytes,
               (const char *)c->in[0] + (size_t)from * s->row_bytes,
               (size_t)(live - from) * s->row_bytes);
    ch__fill(out + (size_t)live * s->row_bytes, (to - live) * s->width, s->each, s->value);
    return CH_OK;
}

static void fill_room_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = ch__resize_rows(dout[0], 0, n->in[0]->dims.dim[0]);
}

/* Rows are whole, because the live rows are the first rows of the whole value. */
static ch_status fill_room_factors(const ch_node *n, ch_factors *f)
{
    int map[CH_MAX_RANK];

    for (int k = 0; k < n->dims.rank; k++)
        map[k] = k == 0 ? -1 : ch__factor(f, CH_PAR);
    ch__factor_map(f, 0, n->dims.rank, map);
    return ch__factor_out(f, n->dims.rank, map);
}

static const ch_kernel fill_room_plain = {"plain", .prepare = fill_room_prepare,
                                          .run = fill_room_run};

const ch_op ch__op_fill_room = {
    .name = "fill_room",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .attrs = fill_room_rows,
    .attrs_bytes = sizeof(ch_fill_attrs),
    .infer = fill_room_infer,
    .grad = fill_room_grad,
    .factors = fill_room_factors,
    .kernels = (const ch_kernel *const[]){&fill_room_plain, NULL},
    .room = 1,
};

ch_node *ch__without_room(ch_node *x, double value)
{
    return ch__node(&ch__op_fill_room, &((ch_fill_attrs){value, .without_room = true}), 1, &x);
}

ch_node *ch__resize_rows(ch_node *x, double value, ch_dim rows)
{
    ch_fill_attrs a = {value, .rows = {.rank = 1, .dim = {rows}}};

    return ch__node(&ch__op_fill_room, &a, 1, &x);
}

ch_node *ch__with_room(ch_node *x)
{
    const ch_node *n = x->head;

    return n->op == &ch__op_fill_room && ch__is_ragged(n->in[0]) ? n->in[0] : x;
}
