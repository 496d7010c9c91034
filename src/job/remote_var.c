/* job/remote_var.c -- variables on parameter servers: create, read, write and free.
 *
 * A variable is described by a ch_plan_variable: its shape, and the server of each shard. Every
 * function divides a request among the shards, calls their servers through the coordinator
 * (`calls`, ch__coord_request) and joins the replies. A write is an assignment
 * (ch__coord_assign), so that servers apply it once. The parameter-server strategy calls these
 * functions (src/strategy/parameter_server_vars.c).
 *
 * Regions count from the variable's first element, except calls.region, which counts from the
 * shard's first element. `wanted` is the region that the caller reads or writes. `piece` is the
 * part of it that a round of calls carries.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "job/remote_var.h"

#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "job/message.h"
#include "job/server/init.h"
#include "tensor/row_marks.h"

/* A list of calls to servers, at most one for each shard. Owns the messages. */
typedef struct calls {
    int          n;
    int         *server;
    int         *shard;  /* index of the shard of each call */
    ch_region   *region; /* of the shard, counted from the shard's first element */
    ch_message **request, **reply;
} calls;

static ch_layout layout_of(const ch_plan_variable *v)
{
    return ch__layout_along(v->axis, v->n_shards);
}

static void free_calls(calls *c)
{
    for (int i = 0; i < c->n; i++) {
        ch__message_unref(c->request[i]);
        ch__message_unref(c->reply[i]);
    }
    ch__free(c->server);
    ch__free(c->shard);
    ch__free(c->region);
    ch__free(c->request);
    ch__free(c->reply);
}

static ch_status new_calls(int most, calls *c)
{
    size_t n = (size_t)most;

    *c = (calls){.server = ch__calloc(n, sizeof(int)),
                 .shard = ch__calloc(n, sizeof(int)),
                 .region = ch__calloc(n, sizeof(ch_region)),
                 .request = ch__calloc(n, sizeof(ch_message *)),
                 .reply = ch__calloc(n, sizeof(ch_message *))};
    if (c->server != NULL && c->shard != NULL && c->region != NULL && c->request != NULL &&
        c->reply != NULL)
        return CH_OK;
    free_calls(c);
    return ch__fail_memory("calls to servers");
}

/* Adds a call to the server of a shard. Takes the request, which may be NULL, over. */
static void add_call(calls *c, const ch_plan_variable *v, int shard, ch_message *request)
{
    c->server[c->n] = v->shard[shard].server;
    c->shard[c->n] = shard;
    c->request[c->n++] = request;
}

/* Sends the calls and blocks until all servers have replied. */
static ch_status make_calls(ch_task *coord, calls *c)
{
    ch_status rc =
        c->n > 0 ? ch__coord_request(coord, c->n, c->server, c->request, c->reply) : CH_OK;

    memset(c->request, 0,
           (size_t)c->n * sizeof(ch_message *)); /* ch__coord_request took them over */
    return rc;
}

/* Adds a call without a request for each shard that the piece overlaps. */
static void list_regions(const ch_plan_variable *v, const ch_region *piece, calls *c)
{
    for (int i = 0; i < v->n_shards; i++) {
        ch_region shard, both;

        ch__layout_region(layout_of(v), v->shape, i, &shard);
        if (!ch__region_intersect(&shard, piece, v->shape.rank, &both))
            continue;
        for (int k = 0; k < v->shape.rank; k++)
            both.begin[k] -= shard.begin[k];
        c->region[c->n] = both;
        add_call(c, v, i, NULL);
    }
}

/* Returns the location of the region of call i inside a tensor that holds the region `wanted`
 * of the variable. */
static ch_region region_in(const ch_plan_variable *v, const ch_region *wanted, const calls *c,
                           int i)
{
    ch_region r = c->region[i], shard;

    ch__layout_region(layout_of(v), v->shape, c->shard[i], &shard);
    for (int k = 0; k < v->shape.rank; k++)
        r.begin[k] += shard.begin[k] - wanted->begin[k];
    return r;
}

/* Returns true if call i is about its whole shard. */
static bool is_whole(const ch_plan_variable *v, const calls *c, int i)
{
    ch_shape shard = ch__layout_shape(layout_of(v), v->shape, c->shard[i]);

    return memcmp(shard.dim, c->region[i].size, (size_t)shard.rank * sizeof(shard.dim[0])) == 0;
}

/* Returns the number of elements of a piece. The bytes of strings are not known. */
static int64_t elements_of_piece(const ch_plan_variable *v)
{
    return v->dtype == CH_STR ? INT64_MAX
                              : CH_REMOTE_PIECE_BYTES / (int64_t)ch_dtype_bytes(v->dtype);
}

/* Returns the region, or that of the whole variable if `region` is NULL. */
static ch_region wanted_of(const ch_plan_variable *v, const ch_region *region)
{
    ch_region whole;

    ch__layout_region((ch_layout){.parts = {0}}, v->shape, 0, &whole);
    return region != NULL ? *region : whole;
}

static ch_status fail_reply(const ch_plan_variable *v)
{
    return ch__fail(CH_INTERNAL,
                    "variable %s: a server replied with a tensor of another dtype or shape",
                    v->name);
}

/* ---- creating and freeing ---- */

/* Makes the CREATE message of shard i: with its part of `initial`, or with `init` if that is
 * NULL. */
static ch_status new_create(const ch_plan_variable *v, int i, ch_tensor *initial,
                            const ch_init *init, ch_message **out)
{
    Cohort__PsCreate m;
    Cohort__PsInit   spec;
    ch_tensor       *part = NULL;
    size_t           size = strlen(v->name) + 32;
    char            *whole = ch__strdup(v->name), *name = ch__malloc(size);
    ch_init_spec     initial_spec = {
            .init = init, .name = whole, .dtype = v->dtype, .whole = v->shape};
    ch_status rc = name == NULL || whole == NULL ? ch__fail_memory("a variable") : CH_OK;

    cohort__ps_create__init(&m);
    m.variable = v->shard[i].variable;
    m.name = name;
    if (rc == CH_OK)
        (void)snprintf(name, size, v->n_shards > 1 ? "%s/part_%d" : "%s", v->name, i);
    if (rc == CH_OK && initial == NULL) {
        ch__init_spec_pack(&initial_spec, layout_of(v), i, &spec);
        m.init = &spec;
    }
    if (rc == CH_OK && initial != NULL)
        rc = ch__layout_cut(layout_of(v), v->shape, initial, i, &part);
    if (rc == CH_OK)
        rc = ch__message_pack(CH_PS_CREATE, &m.base, part != NULL, &part, out);
    ch__free(whole);
    ch__free(name);
    return rc;
}

ch_status ch__remote_create(ch_task *coord, const ch_plan_variable *v, ch_tensor *initial,
                            const ch_init *init)
{
    calls     c;
    ch_status rc = new_calls(v->n_shards, &c);

    if (rc != CH_OK)
        return rc;
    for (int i = 0; i < v->n_shards && rc == CH_OK; i++) {
        ch_message *request = NULL;

        rc = new_create(v, i, initial, init, &request);
        if (rc == CH_OK)
            add_call(&c, v, i, request);
    }
    if (rc == CH_OK)
        rc = make_calls(coord, &c);
    free_calls(&c);
    return rc;
}

void ch__remote_free(ch_task *coord, struct ch_plan_shard shard)
{
    Cohort__PsFree m;
    ch_message    *request = NULL;

    cohort__ps_free__init(&m);
    m.n_variables = 1;
    m.variables = &shard.variable;
    if (ch__message_pack(CH_PS_FREE, &m.base, 0, NULL, &request) == CH_OK)
        ch__coord_send(coord, shard.server, request);
}

/* ---- reading ---- */

/* Makes the READ message of call i. */
static ch_status new_read(const ch_plan_variable *v, uint64_t snapshot, const calls *c, int i,
                          ch_message **out)
{
    Cohort__PsRead   m;
    Cohort__PsRegion region, *list = &region;
    uint64_t         variable = v->shard[c->shard[i]].variable;

    cohort__ps_read__init(&m);
    cohort__ps_region__init(&region);
    m.n_variables = 1;
    m.variables = &variable;
    m.snapshot = snapshot;
    if (!is_whole(v, c, i)) {
        region.n_begin = region.n_size = (size_t)v->shape.rank;
        region.begin = c->region[i].begin;
        region.size = c->region[i].size;
        m.n_regions = 1;
        m.regions = &list;
    }
    return ch__message_pack(CH_PS_READ, &m.base, 0, NULL, out);
}

/* Copies the tensor of each reply to its region of `to`. Replies are untrusted. */
static ch_status copy_replies(const ch_plan_variable *v, const ch_region *wanted,
                              const calls *c, ch_tensor *to)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < c->n && rc == CH_OK; i++) {
        ch_region  at = region_in(v, wanted, c, i);
        ch_tensor *view = NULL;

        if (c->reply[i]->n_tensors != 1 || c->reply[i]->tensor[0]->dtype != v->dtype)
            return fail_reply(v);
        rc = ch__tensor_region(to, &at, &view);
        if (rc == CH_OK && !ch_shape_equal(view->shape, c->reply[i]->tensor[0]->shape))
            rc = fail_reply(v);
        if (rc == CH_OK)
            rc = ch_tensor_copy(c->reply[i]->tensor[0], view);
        ch_tensor_unref(view);
    }
    return rc;
}

/* Reads a piece of the region `wanted` into `to`, which holds that region. */
static ch_status read_piece(ch_task *coord, const ch_plan_variable *v, uint64_t snapshot,
                            const ch_region *wanted, const ch_region *piece, ch_tensor *to)
{
    calls     c;
    ch_status rc = new_calls(v->n_shards, &c);

    if (rc != CH_OK)
        return rc;
    list_regions(v, piece, &c);
    for (int i = 0; i < c.n && rc == CH_OK; i++)
        rc = new_read(v, snapshot, &c, i, &c.request[i]);
    if (rc == CH_OK)
        rc = make_calls(coord, &c);
    if (rc == CH_OK)
        rc = copy_replies(v, wanted, &c, to);
    free_calls(&c);
    return rc;
}

ch_status ch__remote_read_to(ch_task *coord, const ch_plan_variable *v, uint64_t snapshot,
                             const ch_region *region, ch_tensor *to)
{
    ch_region wanted = wanted_of(v, region), piece;
    int64_t   n = ch__region_count(&wanted, v->shape.rank), most = elements_of_piece(v);
    ch_status rc = CH_OK;

    for (int64_t done = 0; done < n && rc == CH_OK;) {
        done += ch__region_piece(&wanted, v->shape.rank, most, done, &piece);
        rc = read_piece(coord, v, snapshot, &wanted, &piece, to);
    }
    return rc;
}

ch_status ch__remote_read(ch_task *coord, const ch_plan_variable *v, const ch_region *region,
                          ch_tensor **out)
{
    ch_shape   shape = v->shape;
    ch_tensor *t = NULL;
    ch_status  rc;

    for (int k = 0; region != NULL && k < shape.rank; k++)
        shape.dim[k] = region->size[k];
    rc = ch_tensor_new(v->dtype, shape, &t);
    if (rc == CH_OK)
        rc = ch__remote_read_to(coord, v, 0, region, t);
    if (rc == CH_OK)
        *out = t;
    else
        ch_tensor_unref(t);
    return rc;
}

ch_status ch__remote_read_marks(ch_task *coord, const ch_plan_variable *v, uint64_t snapshot,
                                ch_tensor **out)
{
    int64_t          bytes = v->shape.rank > 0 ? ch__row_marks_bytes(v->shape.dim[0]) : 0;
    uint64_t         variable = v->shard[0].variable;
    int              server = v->shard[0].server;
    ch_message      *request = NULL, *reply = NULL;
    const ch_tensor *t;
    Cohort__PsRead   m;
    ch_status        rc;

    cohort__ps_read__init(&m);
    m.n_variables = 1;
    m.variables = &variable;
    m.snapshot = snapshot;
    m.marks = true;
    rc = ch__message_pack(CH_PS_READ, &m.base, 0, NULL, &request);
    if (rc == CH_OK)
        rc = ch__coord_request(coord, 1, &server, &request, &reply);
    if (rc != CH_OK)
        return rc;
    t = reply->n_tensors == 1 ? reply->tensor[0] : NULL;
    if (t != NULL && t->dtype == CH_U8 && t->shape.rank == 1 && t->contiguous &&
        (t->shape.dim[0] == 0 || t->shape.dim[0] == bytes))
        *out = ch_tensor_ref(reply->tensor[0]);
    else
        rc = fail_reply(v);
    ch__message_unref(reply);
    return rc;
}

/* Makes the ROWS message for a shard. */
static ch_status new_rows(uint64_t variable, uint64_t snapshot, ch_tensor *ids,
                          ch_message **out)
{
    Cohort__PsRows m;

    cohort__ps_rows__init(&m);
    m.n_variables = 1;
    m.variables = &variable;
    m.snapshot = snapshot;
    (void)ch_tensor_ref(ids);
    return ch__message_pack(CH_PS_ROWS, &m.base, 1, &ids, out);
}

/* Checks the reply of a shard to ROWS, which is untrusted. */
static ch_status check_rows(const ch_plan_variable *v, int shard, const ch_tensor *ids,
                            const ch_message *reply)
{
    ch_shape want = ch__layout_shape(layout_of(v), v->shape, shard);

    want.dim[0] = ids->shape.dim[0];
    return reply->n_tensors == 1 && reply->tensor[0]->dtype == v->dtype &&
                   ch_shape_equal(reply->tensor[0]->shape, want)
               ? CH_OK
               : fail_reply(v);
}

ch_status ch__remote_gather(ch_task *coord, const ch_plan_variable *v, uint64_t snapshot,
                            ch_tensor *const *ids, ch_tensor **rows)
{
    bool        by_rows = v->axis == 0;
    ch_tensor **piece = by_rows ? rows : ch__calloc((size_t)v->n_shards, sizeof(ch_tensor *));
    calls       c;
    ch_status   rc = piece == NULL ? ch__fail_memory("rows") : new_calls(v->n_shards, &c);

    if (rc != CH_OK) {
        if (!by_rows)
            ch__free(piece);
        return rc;
    }
    for (int i = 0; i < v->n_shards && rc == CH_OK; i++) {
        ch_tensor  *list = ids[by_rows ? i : 0];
        ch_message *request = NULL;

        if (list == NULL)
            continue;
        rc = new_rows(v->shard[i].variable, snapshot, list, &request);
        if (rc == CH_OK)
            add_call(&c, v, i, request);
    }
    if (rc == CH_OK)
        rc = make_calls(coord, &c);
    for (int i = 0; i < c.n && rc == CH_OK; i++) {
        rc = check_rows(v, c.shard[i], ids[by_rows ? c.shard[i] : 0], c.reply[i]);
        if (rc == CH_OK)
            piece[c.shard[i]] = ch_tensor_ref(c.reply[i]->tensor[0]);
    }
    free_calls(&c);
    if (rc == CH_OK && !by_rows && ids[0] != NULL)
        rc = ch__layout_join(layout_of(v), piece, &rows[0]);
    for (int i = 0; !by_rows && i < v->n_shards; i++)
        ch_tensor_unref(piece[i]);
    if (!by_rows)
        ch__free(piece);
    return rc;
}

/* ---- writing ---- */

/* Writes a piece of `value`, which holds the region `wanted`. */
static ch_status write_piece(ch_task *coord, const ch_plan_variable *v, const ch_region *wanted,
                             const ch_region *piece, ch_tensor *value)
{
    ch_tensor **part = ch__calloc((size_t)v->n_shards, sizeof(ch_tensor *));
    uint64_t   *variable = ch__calloc((size_t)v->n_shards, sizeof(*variable));
    bool        replaces = true; /* the piece is the whole variable */
    calls       c;
    ch_status   rc = part == NULL || variable == NULL ? ch__fail_memory("a value")
                                                      : new_calls(v->n_shards, &c);

    if (rc != CH_OK) {
        ch__free(part);
        ch__free(variable);
        return rc;
    }
    list_regions(v, piece, &c);
    for (int i = 0; i < c.n && rc == CH_OK; i++) {
        ch_region  at = region_in(v, wanted, &c, i);
        ch_tensor *view = NULL;

        variable[i] = v->shard[c.shard[i]].variable;
        replaces &= is_whole(v, &c, i);
        rc = ch__tensor_region(value, &at, &view);
        if (rc == CH_OK)
            rc = ch_tensor_contiguous(view, &part[i]);
        ch_tensor_unref(view);
    }
    if (rc == CH_OK)
        rc = ch__coord_assign(coord, &(ch_assignment){.n = c.n,
                                                      .server = c.server,
                                                      .variable = variable,
                                                      .rank = v->shape.rank,
                                                      .region = replaces ? NULL : c.region,
                                                      .value = part});
    for (int i = 0; i < c.n; i++)
        ch_tensor_unref(part[i]);
    free_calls(&c);
    ch__free(part);
    ch__free(variable);
    return rc;
}

ch_status ch__remote_write(ch_task *coord, const ch_plan_variable *v, const ch_region *region,
                           ch_tensor *value)
{
    ch_region wanted = wanted_of(v, region), piece;
    int64_t   n = ch__region_count(&wanted, v->shape.rank), most = elements_of_piece(v);
    ch_status rc = CH_OK;

    for (int64_t done = 0; done < n && rc == CH_OK;) {
        done += ch__region_piece(&wanted, v->shape.rank, most, done, &piece);
        rc = write_piece(coord, v, &wanted, &piece, value);
    }
    return rc;
}
