/* tensor/buffer_pool.c -- memory of tensors that come and go in every step.   SPDX-License-Identifier: Apache-2.0 */
#include "tensor/buffer_pool.h"

#include "base/fault.h"
#include "base/mem.h"
#include "tensor/view.h"

enum {
    SMALL = 1 << 16,   /* bytes below which it is not worth it */
    LARGE = 1 << 26,   /* and above which too much would lie about */
    FORGOTTEN = 1 << 8 /* tensors later it goes */
};

/* Nobody else can take a reference to what nobody else has. */
static bool is_idle(const ch_buffer *b)
{
    return atomic_load_explicit(&b->refs, memory_order_acquire) == 1;
}

static void clear(ch_buffer_pool *s, int i)
{
    if (s->place[i].buffer != NULL)
        ch__buffer_unref(s->place[i].buffer);
    s->place[i].buffer = NULL;
}

/* One that is large enough and not much too large; -1: none. What was not used for long goes on the way. */
static int find(ch_buffer_pool *s, const ch_device *device, size_t bytes)
{
    int found = -1;

    for (int i = 0; i < CH_BUFFER_POOL_SIZE; i++) {
        const ch_buffer *b = s->place[i].buffer;

        if (b == NULL || !is_idle(b))
            continue;
        if (found < 0 && b->device == device && b->bytes >= bytes && b->bytes / 2 <= bytes)
            found = i;
        else if (s->now - s->place[i].last > FORGOTTEN)
            clear(s, i);
    }
    return found;
}

/* A free place, or the one that was used last the longest time ago. */
static int oldest(const ch_buffer_pool *s)
{
    int best = 0;

    for (int i = 0; i < CH_BUFFER_POOL_SIZE; i++) {
        if (s->place[i].buffer == NULL)
            return i;
        if (s->place[i].last < s->place[best].last)
            best = i;
    }
    return best;
}

/* With an eighth more, since sizes vary. */
static ch_status put(ch_buffer_pool *s, ch_device *device, size_t bytes, int *place)
{
    ch_tensor *t = NULL;
    ch_status  rc =
        ch_tensor_new_on(device, CH_U8, ch_shape_of((int64_t)(bytes + bytes / 8)), &t);

    if (rc != CH_OK)
        return rc;
    *place = oldest(s);
    clear(s, *place);
    s->place[*place].buffer = ch__buffer_ref(t->buffer);
    ch_tensor_unref(t);
    return CH_OK;
}

ch_status ch__buffer_pool_get(ch_buffer_pool *s, ch_device *device, ch_dtype dtype,
                              ch_shape shape, ch_tensor **out)
{
    int64_t   count, bytes, stride[CH_MAX_RANK];
    ch_status rc = ch__tensor_size(dtype, shape, &count, &bytes);
    int       place;

    if (rc != CH_OK)
        return rc;
    if (bytes < SMALL || bytes > LARGE || dtype == CH_STR)
        return ch_tensor_new_on(device, dtype, shape, out);
    s->now++;
    place = find(s, device, (size_t)bytes);
    if (place < 0)
        rc = put(s, device, (size_t)bytes, &place);
    if (rc != CH_OK)
        return rc;
    s->place[place].last = s->now;
    ch__strides(shape, stride);
    return ch__tensor_view(s->place[place].buffer, dtype, shape, stride,
                           s->place[place].buffer->data, out);
}

void ch__buffer_pool_drop(ch_buffer_pool *s)
{
    for (int i = 0; i < CH_BUFFER_POOL_SIZE; i++)
        clear(s, i);
}

/* ---- lending ---- */

static void give_back(ch_buffer *b)
{
    ch_tensor_unref(b->arg);
    ch__free(b);
}

ch_status ch__lend(ch_tensor *t, ch_device *device, ch_tensor **out)
{
    ch_buffer *b;
    ch_status  rc;

    if (t->buffer->device == device || t->dtype == CH_STR) {
        *out = ch_tensor_ref(t);
        return CH_OK;
    }
    b = ch__calloc(1, sizeof(*b));
    if (b == NULL)
        return ch__fail_memory("an input");
    *b = (ch_buffer){.data = t->data,
                     .bytes = ch_tensor_bytes(t),
                     .device = device,
                     .release = give_back,
                     .arg = ch_tensor_ref(t)};
    atomic_init(&b->refs, 1);
    rc = ch__tensor_view(b, t->dtype, t->shape, t->stride, t->data, out);
    ch__buffer_unref(b);
    return rc;
}
