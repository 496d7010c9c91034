/* tensor/buffer_pool.c -- reuses the memory of tensors that every step allocates and frees.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tensor/buffer_pool.h"

#include "base/fault.h"
#include "base/mem.h"
#include "tensor/view.h"

enum {
    MIN_BYTES = 1 << 16, /* smaller tensors are not pooled: their allocation is cheap */
    MAX_BYTES = 1 << 26, /* larger tensors are not pooled: idle memory would be too large */
    MAX_IDLE = 1 << 8    /* requests after which an idle buffer is freed */
};

/* Returns true if only the pool has a reference. No other thread can add one then. */
static bool is_idle(const ch_buffer *b)
{
    return atomic_load_explicit(&b->refs, memory_order_acquire) == 1;
}

static void clear(ch_buffer_pool *pool, int i)
{
    if (pool->slot[i].buffer != NULL)
        ch__buffer_unref(pool->slot[i].buffer);
    pool->slot[i].buffer = NULL;
}

/* Returns the slot of an idle buffer of at least `bytes` and at most about twice that, or -1 if
 * there is none. Frees buffers that have been idle for more than MAX_IDLE requests. */
static int find(ch_buffer_pool *pool, const ch_device *device, size_t bytes)
{
    int found = -1;

    for (int i = 0; i < CH_BUFFER_POOL_SIZE; i++) {
        const ch_buffer *b = pool->slot[i].buffer;

        if (b == NULL || !is_idle(b))
            continue;
        if (found < 0 && b->device == device && b->bytes >= bytes && b->bytes / 2 <= bytes)
            found = i;
        else if (pool->now - pool->slot[i].last > MAX_IDLE)
            clear(pool, i);
    }
    return found;
}

/* Returns a free slot, or the least recently used one. */
static int oldest(const ch_buffer_pool *pool)
{
    int best = 0;

    for (int i = 0; i < CH_BUFFER_POOL_SIZE; i++) {
        if (pool->slot[i].buffer == NULL)
            return i;
        if (pool->slot[i].last < pool->slot[best].last)
            best = i;
    }
    return best;
}

/* Allocates a buffer and puts it into a slot, *slot. The buffer is an eighth larger than
 * `bytes`, because sizes vary from step to step. */
static ch_status add_buffer(ch_buffer_pool *pool, ch_device *device, size_t bytes, int *slot)
{
    ch_tensor *t = NULL;
    ch_status  rc =
        ch_tensor_new_on(device, CH_U8, ch_shape_of((int64_t)(bytes + bytes / 8)), &t);

    if (rc != CH_OK)
        return rc;
    *slot = oldest(pool);
    clear(pool, *slot);
    pool->slot[*slot].buffer = ch__buffer_ref(t->buffer);
    ch_tensor_unref(t);
    return CH_OK;
}

ch_status ch__buffer_pool_get(ch_buffer_pool *pool, ch_device *device, ch_dtype dtype,
                              ch_shape shape, ch_tensor **out)
{
    int64_t   count, bytes, stride[CH_MAX_RANK];
    ch_status rc = ch__tensor_size(dtype, shape, &count, &bytes);
    int       slot;

    if (rc != CH_OK)
        return rc;
    if (bytes < MIN_BYTES || bytes > MAX_BYTES || dtype == CH_STR)
        return ch_tensor_new_on(device, dtype, shape, out);
    pool->now++;
    slot = find(pool, device, (size_t)bytes);
    if (slot < 0)
        rc = add_buffer(pool, device, (size_t)bytes, &slot);
    if (rc != CH_OK)
        return rc;
    pool->slot[slot].last = pool->now;
    ch__strides(shape, stride);
    return ch__tensor_view(pool->slot[slot].buffer, dtype, shape, stride,
                           pool->slot[slot].buffer->data, out);
}

void ch__buffer_pool_drop(ch_buffer_pool *pool)
{
    for (int i = 0; i < CH_BUFFER_POOL_SIZE; i++)
        clear(pool, i);
}

/* ---- lending ---- */

static void release_lent(ch_buffer *b)
{
    ch_tensor_unref(b->arg);
    ch__free(b);
}

ch_status ch__tensor_share(ch_tensor *t, ch_device *device, ch_tensor **out)
{
    ch_buffer *b;
    ch_status  rc;

    if (t->buffer->device == device || t->dtype == CH_STR) {
        *out = ch_tensor_ref(t);
        return CH_OK;
    }
    b = ch__calloc(1, sizeof(*b));
    if (b == NULL)
        return ch__fail_memory("input tensor");
    *b = (ch_buffer){.data = t->data,
                     .bytes = ch_tensor_bytes(t),
                     .device = device,
                     .release = release_lent,
                     .arg = ch_tensor_ref(t)};
    atomic_init(&b->refs, 1);
    rc = ch__tensor_view(b, t->dtype, t->shape, t->stride, t->data, out);
    ch__buffer_unref(b);
    return rc;
}
