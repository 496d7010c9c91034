/* net/retry.c -- calls that are repeated until the peer replies.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "net/retry.h"

#include <assert.h>

ch_status ch__retries_add(ch_retries *l, ch_retry *r)
{
    assert(ch__map_find(&l->by_id, ch__key(r->id)) == NULL);
    return ch__map_set(&l->by_id, ch__key(r->id), r);
}

void ch__retry_call(ch_retry *r, int64_t now, ch_outbox *outbox)
{
    int doublings = r->n_attempts < r->policy.doublings ? r->n_attempts : r->policy.doublings;

    if (r->n_attempts++ == 0)
        r->since = now;
    r->is_open = true;
    ch__outbox_call(outbox, r->link, ch__message_ref(r->message),
                    &(ch_call_options){.id = r->id,
                                       .deadline = now + (r->policy.timeout << doublings),
                                       .incarnation = r->incarnation});
}

/* Returns true if an attempt with this ending is not repeated. */
static bool is_last(const ch_retry *r, ch_ending ending, int64_t now)
{
    if (ending == CH_ENDED_OK || ending == CH_ENDED_ERROR ||
        (ending == CH_ENDED_REPLACED && r->policy.ends_if_replaced))
        return true;
    return now - r->since > r->policy.patience;
}

bool ch__retries_on_reply(ch_retries *l, const ch_net_event *e, int64_t now, ch_outbox *outbox,
                          ch_retry **ended)
{
    ch_retry *r = ch__map_find(&l->by_id, ch__key(e->id));

    *ended = NULL;
    if (r == NULL)
        return false;
    r->is_open = false;
    if (is_last(r, e->ending, now))
        *ended = ch__map_remove(&l->by_id, ch__key(e->id));
    else
        ch__outbox_timer(outbox, r->id, now + r->policy.pause);
    return true;
}

bool ch__retries_on_timer(ch_retries *l, uint64_t id, int64_t now, ch_outbox *outbox)
{
    ch_retry *r = ch__map_find(&l->by_id, ch__key(id));

    if (r == NULL)
        return false;
    assert(!r->is_open);
    ch__retry_call(r, now, outbox);
    return true;
}

ch_retry *ch__retries_cancel(ch_retries *l, uint64_t id, ch_outbox *outbox)
{
    ch_retry *r = ch__map_remove(&l->by_id, ch__key(id));

    if (r == NULL || outbox == NULL)
        return r;
    if (r->is_open)
        ch__outbox_cancel(outbox, id);
    else
        ch__outbox_timer(outbox, id, INT64_MAX);
    r->is_open = false;
    return r;
}

ch_retry *ch__retries_cancel_to(ch_retries *l, const ch_link *link, ch_outbox *outbox)
{
    for (int i = 0; l->by_id.n > 0 && i < l->by_id.cap; i++) {
        const ch_retry *r = l->by_id.entry[i].value;

        if (r != NULL && (link == NULL || r->link == link))
            return ch__retries_cancel(l, r->id, outbox);
    }
    return NULL;
}

void ch__retries_free(ch_retries *l)
{
    assert(l->by_id.n == 0);
    ch__map_drop(&l->by_id);
}
