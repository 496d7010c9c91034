/* job/coordinator/input.c -- which elements steps get: leases of streams.
 *
 * A stream is read by one worker at a time, in order, as far as that goes: its holder. Whoever is told to read an element of it can,
 * from wherever the stream was last said to be (a place, which workers send along now and then). A step has its element from when it
 * is first sent, and keeps it: so no element is read for two steps, and none that was read is lost with its reader.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"
#include "base/mutant.h"
#include "job/coordinator/private.h"

/* ---- life ---- */

static ch_status new_worker_input(ch_coord *c, ch_worker_input **out)
{
    ch_worker_input *f = ch__calloc(1, sizeof(*f));

    if (f == NULL)
        return ch__fail_memory("data for workers");
    f->refs = 1;
    f->next_input = c->inputs;
    c->inputs = f;
    *out = f;
    return CH_OK;
}

void ch__worker_input_unref(const ch_coord_context *t, ch_worker_input *f)
{
    ch_worker_input **at = &t->c->inputs;

    if (f == NULL || --f->refs > 0)
        return;
    while (*at != NULL && *at != f)
        at = &(*at)->next_input;
    if (*at == f)
        *at = f->next_input;
    for (int i = 0; i < f->n_streams; i++) {
        ch__workers_forget(t, f->stream[i].number, CH_KNOWN_STREAM);
        ch_tensor_unref(f->stream[i].dataset);
        ch_tensor_unref(f->stream[i].place);
        ch_tensor_unref(f->stream[i].coming);
    }
    for (int i = 0; i < f->n_values * f->copies * f->width; i++)
        ch_tensor_unref(f->value[i]);
    ch__free(f->stream);
    ch__free(f->value);
    ch__free(f);
}

static ch_status make_streams(ch_coord *c, int n, ch_tensor *const *dataset, ch_worker_input *f)
{
    f->stream = ch__calloc((size_t)n, sizeof(*f->stream));
    if (f->stream == NULL)
        return ch__fail_memory("data for workers");
    for (; f->n_streams < n; f->n_streams++)
        f->stream[f->n_streams] =
            (ch_worker_input_stream){.number = ++c->n_numbers,
                                     .dataset = ch_tensor_ref(dataset[f->n_streams]),
                                     .end = INT64_MAX,
                                     .holder = -1};
    return CH_OK;
}

ch_status ch__coord_input_datasets(ch_task *coord, int n, ch_tensor *const *dataset, int width,
                                   int64_t pass, bool is_shared, ch_worker_input **out)
{
    ch_worker_input *f = NULL;
    ch_coord_context t = ch__coord_enter(coord);
    ch_status        rc = new_worker_input(t.c, &f);
    if (rc == CH_OK)
        rc = make_streams(t.c, n, dataset, f);
    if (rc == CH_OK) {
        f->width = width;
        f->pass = pass;
        f->is_shared = is_shared;
        *out = f;
    } else {
        ch__worker_input_unref(&t, f);
    }
    ch__task_leave(coord);
    return rc;
}

ch_status ch__coord_input_values(ch_task *coord, int n, int copies, int width,
                                 ch_tensor *const *value, ch_worker_input **out)
{
    ch_worker_input *f = NULL;
    ch_coord_context t = ch__coord_enter(coord);
    ch_status        rc = new_worker_input(t.c, &f);
    if (rc == CH_OK) {
        f->value = ch__calloc((size_t)(n * copies * width) + 1, sizeof(ch_tensor *));
        if (f->value == NULL)
            rc = ch__fail_memory("values for workers");
    }
    if (rc == CH_OK) {
        f->n_values = n;
        f->copies = copies;
        f->width = width;
        for (int i = 0; i < n * copies * width; i++)
            f->value[i] = ch_tensor_ref(value[i]);
        *out = f;
    } else {
        ch__worker_input_unref(&t, f);
    }
    ch__task_leave(coord);
    return rc;
}

void ch__coord_input_unref(ch_task *coord, ch_worker_input *f)
{
    ch_coord_context t;

    if (f == NULL)
        return;
    t = ch__coord_enter(coord);
    if (t.c != NULL)
        ch__worker_input_unref(&t, f);
    ch__task_leave(coord);
}

/* ---- leases ---- */

static bool has_more(const ch_worker_input_stream *s)
{
    return s->next < s->end;
}

/* Of a shared one: the worker's own, or one that nobody reads, or any. */
static int choose_shared(const ch_worker_input *f, int worker)
{
    int own = worker % f->n_streams, best = -1;

    if (has_more(&f->stream[own]))
        return own;
    for (int i = 0; i < f->n_streams; i++)
        if (has_more(&f->stream[i]) &&
            (best < 0 || f->stream[i].holder == worker || f->stream[i].holder < 0))
            best = i;
    return best;
}

ch_status ch__worker_input_choose(ch_scheduled *s, int worker)
{
    for (int i = 0; i < s->n_leases; i++) {
        ch_lease *l = &s->lease[i];

        if (l->input->n_values > 0 || l->number >= 0)
            continue;
        l->stream = l->input->is_shared ? choose_shared(l->input, worker)
                                        : worker % l->input->n_streams;
        if (l->stream < 0)
            return ch__fail(CH_OUT_OF_RANGE,
                            "the data that it reads has ended; ch_per_worker_iterate "
                            "begins a new pass");
    }
    return CH_OK;
}

void ch__worker_input_lease(ch_scheduled *s, int worker)
{
    for (int i = 0; i < s->n_leases; i++) {
        ch_lease               *l = &s->lease[i];
        ch_worker_input_stream *from;

        if (l->input->n_values > 0)
            continue;
        from = &l->input->stream[l->stream];
        from->holder = worker;
        if (l->number < 0)
            l->number = from->next++;
    }
}

static ch_status speak_stream(const ch_worker_input *f, const ch_worker_input_stream *s,
                              ch_message **out)
{
    Cohort__WorkerStream m;
    ch_tensor           *tensor[2] = {ch_tensor_ref(s->dataset), ch_tensor_ref(s->place)};

    cohort__worker_stream__init(&m);
    m.stream = s->number;
    m.reader = s - f->stream;
    m.pass = f->pass;
    m.first = s->place != NULL ? s->place_at : 0;
    return ch__message_pack(CH_WORKER_STREAM, &m.base, s->place != NULL ? 2 : 1, tensor, out);
}

/* Who takes a stream over is told where it is, also if he had it before. */
static bool is_told(const ch_coord_context *t, const ch_worker_input *f,
                    const ch_worker_input_stream *s, int worker)
{
    ch_worker_entry *m = t->c->worker[worker];
    ch_message      *p = NULL;
    bool             knows;

    if (ch__map_find(&m->knows, (ch_key){s->number, 0}) != NULL)
        return m->n_told == 0;
    if (speak_stream(f, s, &p) != CH_OK)
        return false;
    knows = ch__workers_send_once(t, m, s->number, p);
    ch__message_unref(p);
    return knows;
}

bool ch__worker_input_is_sent(const ch_coord_context *t, const ch_scheduled *s, int worker)
{
    bool told = true;

    for (int i = 0; i < s->n_leases; i++) {
        const ch_lease *l = &s->lease[i];

        if (l->input->n_values == 0)
            told &= is_told(t, l->input, &l->input->stream[l->stream], worker);
    }
    return told;
}

/* ---- what workers say of them ---- */

bool ch__worker_input_ended(const ch_coord_context *t, ch_scheduled *s, uint64_t stream)
{
    bool again = false;

    (void)t;
    for (int i = 0; i < s->n_leases; i++) {
        ch_lease               *l = &s->lease[i];
        ch_worker_input_stream *from =
            l->input->n_values == 0 ? &l->input->stream[l->stream] : NULL;

        if (from == NULL || from->number != stream)
            continue;
        if (l->number < from->end)
            from->end = l->number;
        l->number = -1;
        again = l->input->is_shared && choose_shared(l->input, l->stream) >= 0;
    }
    return again;
}

static void take_place(ch_worker_input_stream *s)
{
    if (s->coming == NULL || s->n_before > 0)
        return;
    ch_tensor_unref(s->place);
    s->place = s->coming;
    s->place_at = s->coming_at;
    s->coming = NULL;
}

static int reads_before(const ch_scheduled *s, uint64_t stream, int64_t number)
{
    int n = 0;

    for (int i = 0; i < s->n_leases; i++) {
        const ch_lease *l = &s->lease[i];

        n += l->input->n_values == 0 && l->number >= 0 && l->number < number &&
             l->input->stream[l->stream].number == stream;
    }
    return n;
}

/* Steps that were sent come before all others in the queue. */
static int count_before(const ch_coord *c, uint64_t stream, int64_t number)
{
    int n = 0;

    for (const ch_scheduled *s = c->running.first; s != NULL; s = s->after)
        n += reads_before(s, stream, number);
    for (const ch_scheduled *s = c->queue.first; s != NULL && s->was_sent; s = s->after)
        n += reads_before(s, stream, number);
    return n;
}

void ch__worker_input_position(const ch_coord_context *t, uint64_t stream, int64_t number,
                               ch_tensor *place)
{
    for (ch_worker_input *f = t->c->inputs; f != NULL; f = f->next_input)
        for (int i = 0; i < f->n_streams; i++) {
            ch_worker_input_stream *s = &f->stream[i];

            if (s->number != stream || s->coming != NULL || number <= s->place_at)
                continue;
            s->coming = ch_tensor_ref(place);
            s->coming_at = number;
            s->n_before = count_before(t->c, stream, number);
            take_place(s);
        }
}

/* One less that reads what is before a place to come. */
static void end_lease(const ch_lease *l)
{
    ch_worker_input_stream *from;

    if (l->input->n_values > 0)
        return;
    from = &l->input->stream[l->stream];
    if (from->coming != NULL && l->number >= 0 && l->number < from->coming_at) {
        from->n_before--;
        take_place(from);
    }
}

void ch__worker_input_release(const ch_coord_context *t, ch_scheduled *s)
{
    for (int i = 0; i < s->n_leases; i++) {
        end_lease(&s->lease[i]);
        ch__worker_input_unref(t, s->lease[i].input);
    }
    s->n_leases = 0;
}

void ch__worker_input_worker_lost(const ch_coord *c, int worker)
{
    for (ch_worker_input *f = c->inputs; f != NULL; f = f->next_input)
        for (int i = 0; i < f->n_streams; i++)
            if (f->stream[i].holder == worker)
                f->stream[i].holder = -1;
}
