/* ops/table.c -- table_lookup: maps keys to values by a static table.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "tensor/table.h"

#include "graph/graph.h"
#include "ops/ops.h"

typedef struct table_attrs {
    ch_table *table;
} table_attrs;

static const ch_attr table_rows[] = {
    CH_ATTR_TABLE(table_attrs, table),
    CH_ATTR_END,
};

static ch_status table_infer(ch_infer *c)
{
    const ch_table *t = ((const table_attrs *)c->attrs)->table;

    if (t == NULL)
        return ch__infer_fail(c, "the table is NULL");
    if (!ch__table_accepts(t, c->dtype[0]))
        return ch__infer_fail(c, "input 0 has the wrong dtype: the keys of the table are %s",
                              t->has_words ? "strings" : "i32 or i64");
    return ch__infer_dims(c, 0, t->dtype, &c->in[0]);
}

typedef struct table_state {
    const ch_table *table; /* owned by the node's attributes */
    ch_dtype        keys;
    int64_t         n;
    int             tiles;
} table_state;

static ch_status table_prepare(const ch_node *n, ch_prep *p)
{
    enum { COST = 32 }; /* elementary operations of a key; most of them are cache misses */
    table_state *s = ch__prep_state(p, sizeof(*s));

    if (s == NULL)
        return ch__fail_memory("table_lookup");
    s->table = ((const table_attrs *)ch__attrs(n))->table;
    s->keys = n->in[0]->dtype;
    s->n = ch__count(n);
    s->tiles = ch__tile_count(s->n, COST);
    p->n_phases = 1;
    p->tiles[0] = s->tiles;
    return CH_OK;
}

static ch_status table_run(const ch_call *c, ch_kernel_tile t)
{
    const table_state *s = c->state;
    int64_t            from, to;

    ch__tile_range(s->n, s->tiles, t.index, &from, &to);
    ch__table_find(s->table, s->keys,
                   (const char *)c->in[0] + (size_t)from * ch_dtype_bytes(s->keys), to - from,
                   (char *)c->out[0] + (size_t)from * ch_dtype_bytes(s->table->dtype));
    return CH_OK;
}

static const ch_kernel table_plain = {"plain", .prepare = table_prepare, .run = table_run};

const ch_op ch__op_table_lookup = {
    .name = "table_lookup",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .flags = CH_OP_NO_GRAD | CH_OP_STRINGS,
    .attrs = table_rows,
    .attrs_bytes = sizeof(table_attrs),
    .infer = table_infer,
    .factors = ch__factors_elementwise,
    .kernels = (const ch_kernel *const[]){&table_plain, NULL},
    .room = CH_ROOM_ANY,
};

ch_node *ch_table_lookup(ch_table *t, ch_node *keys)
{
    table_attrs a = {t};

    return ch__node(&ch__op_table_lookup, &a, 1, &keys);
}
