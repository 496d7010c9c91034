/* net/post.c -- what a task posts: calls take their room at once, and go out after the event.
 * SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "net/wire.h"

enum {
    AT_ONCE = 64
}; /* things that a task can post in an event without memory being asked for */

ch_fault *ch__fault_copy(const ch_fault *f)
{
    ch_fault *copy = ch__malloc(sizeof(*copy));

    if (copy == NULL)
        return NULL;
    ch__fault_clear(copy);
    copy->code = f->code;
    copy->replica = f->replica;
    copy->is_limit = f->is_limit;
    memcpy(copy->op, f->op, sizeof(f->op));
    memcpy(copy->task, f->task, sizeof(f->task));
    memcpy(copy->text, f->text, strnlen(f->text, sizeof(f->text) - 1) + 1);
    atomic_init(&copy->state, atomic_load_explicit(&f->state, memory_order_acquire));
    return copy;
}

void ch__frame_drop(ch_frame *f)
{
    ch__parcel_unref(f->parcel);
    ch__free(f->fault);
    f->parcel = NULL;
    f->fault = NULL;
}

bool ch__post_reserve(ch_task *t)
{
    return ch__grow((void **)&t->ended, &t->cap_ended, t->n_ended + AT_ONCE,
                    sizeof(ch_ended)) &&
           ch__grow((void **)&t->post.item, &t->post.cap, t->post.n + AT_ONCE,
                    sizeof(ch_posted)) &&
           ch__grow((void **)&t->work, &t->cap_work, t->n_work + AT_ONCE, sizeof(ch_work)) &&
           ch__opens_reserve(&t->table, AT_ONCE);
}

void ch__post_ending(ch_task *t, uint64_t id, ch_ending ending, ch_link *l)
{
    if (ch__grow((void **)&t->ended, &t->cap_ended, t->n_ended + 1, sizeof(ch_ended)))
        t->ended[t->n_ended++] = (ch_ended){id, ending, l};
    else
        t->is_broken = true;
}

void ch__call_drop(ch_task *t, ch_open *call)
{
    ch_link *l = call->link;

    l->n_calls--;
    l->n_bytes -= call->bytes;
    ch__opens_drop(&t->table, call);
}

static ch_posted *post_room(ch_post *post)
{
    if (!ch__grow((void **)&post->item, &post->cap, post->n + 1, sizeof(ch_posted)))
        return NULL;
    return &post->item[post->n++];
}

/* A parcel that is larger than all of the link's room goes when nothing else does. */
static bool has_room(const ch_link *l, int64_t bytes)
{
    int     calls;
    int64_t most;

    l->task->net->wire->room(l, &calls, &most);
    return l->n_calls < calls && (l->n_calls == 0 || l->n_bytes <= most - bytes);
}

void ch__post_call(ch_post *post, ch_link *to, ch_parcel *p, const ch_call_options *opt)
{
    ch_task   *t = post->task;
    int64_t    bytes = ch__parcel_size(p);
    ch_posted *item = NULL;
    ch_open   *e = NULL;

    assert(ch__opens_find(&t->table, CH_OPEN_CALL, opt->id) == NULL);
    if (t->is_alive && has_room(to, bytes)) {
        if (ch__opens_reserve(&t->table, 1) && (item = post_room(post)) != NULL)
            e = ch__opens_add(&t->table, CH_OPEN_CALL, opt->id, opt->deadline);
        else
            ch__post_ending(t, opt->id, CH_ENDED_LOST, to);
    } else if (t->is_alive) {
        ch__post_ending(t, opt->id, CH_ENDED_NO_ROOM, to);
    }
    if (e == NULL) {
        ch__parcel_unref(p);
        return;
    }
    e->link = to;
    e->bytes = bytes;
    to->n_calls++;
    to->n_bytes += bytes;
    *item =
        (ch_posted){.frame = {.kind = CH_FRAME_CALL,
                              .call = ch__opens_number(&t->table, e),
                              .from = t->incarnation,
                              .to = opt->incarnation,
                              .timeout = opt->deadline > t->now ? opt->deadline - t->now : 1,
                              .parcel = p},
                    .link = to};
}

void ch__post_cancel(ch_post *post, uint64_t id)
{
    ch_task   *t = post->task;
    ch_open   *e = ch__opens_find(&t->table, CH_OPEN_CALL, id);
    ch_posted *item;

    if (e == NULL)
        return;
    item = post_room(post); /* without it the callee finds out later */
    if (item != NULL)
        *item = (ch_posted){
            .frame = {.kind = CH_FRAME_CANCEL, .call = ch__opens_number(&t->table, e)},
            .link = e->link,
            .bytes = e->bytes};
    ch__post_ending(t, id, CH_ENDED_CANCELLED, e->link);
    ch__call_drop(t, e);
}

/* An answer that finds no memory is lost: the caller's deadline tells it. */
static void post_answer(ch_post *post, ch_call_id call, ch_frame f)
{
    ch_task   *t = post->task;
    ch_open   *e = ch__opens_at(&t->table, CH_OPEN_ASKED, call);
    ch_posted *item = e != NULL ? post_room(post) : NULL;

    if (item == NULL) {
        ch__frame_drop(&f);
        return;
    }
    f.kind = CH_FRAME_ANSWER;
    f.call = e->id;
    f.from = t->incarnation;
    f.to = e->incarnation;
    f.back = e->link;
    *item = (ch_posted){.frame = f};
    ch__opens_drop(&t->table, e);
}

void ch__post_answer(ch_post *post, ch_call_id call, ch_parcel *p)
{
    post_answer(post, call, (ch_frame){.ending = CH_ENDED_OK, .parcel = p});
}

void ch__post_refusal(ch_post *post, ch_call_id call, const ch_fault *why)
{
    post_answer(post, call,
                (ch_frame){.ending = CH_ENDED_REFUSED,
                           .status = why->code,
                           .fault = ch__fault_copy(why)});
}

void ch__post_timer(ch_post *post, uint64_t id, int64_t at)
{
    ch_task *t = post->task;
    ch_open *e = ch__opens_find(&t->table, CH_OPEN_TIMER, id);

    if (e != NULL && at == INT64_MAX)
        ch__opens_drop(&t->table, e);
    else if (e != NULL)
        ch__opens_move(&t->table, e, at);
    else if (t->is_alive && at != INT64_MAX &&
             (!ch__opens_reserve(&t->table, 1) ||
              ch__opens_add(&t->table, CH_OPEN_TIMER, id, at) == NULL))
        t->is_broken = true;
}

void ch__post_work(ch_post *post, uint64_t id, void (*run)(void *arg), void (*drop)(void *arg),
                   void *arg)
{
    ch_task *t = post->task;

    if (t->is_alive &&
        ch__grow((void **)&t->work, &t->cap_work, t->n_work + 1, sizeof(ch_work))) {
        t->work[t->n_work++] = (ch_work){id, t->incarnation, run, drop, arg};
        return;
    }
    t->is_broken = t->is_alive;
    if (drop != NULL)
        drop(arg);
}

static void send_call(ch_task *t, ch_posted *item)
{
    ch_frame  f = item->frame;
    uint64_t  number = f.call;
    ch_ending ending = t->net->wire->call(item->link, &f);
    ch_open  *e;

    if (ending == CH_ENDED_OK)
        return;
    ch__frame_drop(&f);
    e = ch__opens_at(&t->table, CH_OPEN_CALL, number);
    if (e == NULL) /* cancelled already */
        return;
    ch__post_ending(t, e->id, ending, item->link);
    ch__call_drop(t, e);
}

void ch__post_flush(ch_post *post)
{
    const ch_wire_ops *wire = post->task->net->wire;

    for (int i = 0; i < post->n; i++) {
        ch_posted *item = &post->item[i];

        if (item->frame.kind == CH_FRAME_CALL)
            send_call(post->task, item);
        else if (item->frame.kind == CH_FRAME_ANSWER)
            wire->answer(post->task, item->frame.back, &item->frame);
        else
            wire->cancel(item->link, item->frame.call, item->bytes);
    }
    post->n = 0;
}
