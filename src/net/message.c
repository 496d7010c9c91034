/* net/message.c -- messages: a header, the list of tensors and the bytes, in one allocation.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include <stddef.h>

#include "base/mem.h"
#include "net/net.h"
#include "tensor/tensor.h"

typedef struct block {
    ch_message message; /* must be first: a pointer to it is a pointer to the block */
    atomic_int refs;
    int64_t    size; /* see ch__message_size */
    ch_tensor *tensor[];
} block;

static block *block_of(ch_message *m)
{
    return (block *)(void *)m;
}

static void drop_tensors(int n, ch_tensor *const *tensor)
{
    for (int i = 0; i < n; i++)
        ch_tensor_unref(tensor[i]);
}

/* Returns the bytes of all strings. The tensor may be a view with any strides. */
static int64_t text_bytes(const ch_tensor *t)
{
    int64_t index[CH_MAX_RANK] = {0}, bytes = 0;
    int     axis;

    if (ch_tensor_count(t) == 0)
        return 0;
    do {
        int64_t at = 0;

        for (int i = 0; i < t->shape.rank; i++)
            at += index[i] * t->stride[i];
        bytes += (int64_t)((const ch_str *)(const void *)t->data)[at].size;
        for (axis = t->shape.rank - 1; axis >= 0 && ++index[axis] == t->shape.dim[axis]; axis--)
            index[axis] = 0;
    } while (axis >= 0);
    return bytes;
}

ch_status ch__message_new(uint32_t method, size_t n_bytes, void **bytes, int n_tensors,
                          ch_tensor *const *tensor, ch_message **out)
{
    size_t head = sizeof(block) + (size_t)n_tensors * sizeof(ch_tensor *);
    block *b;

    if (n_bytes > CH_MESSAGE_MAX_BYTES) {
        drop_tensors(n_tensors, tensor);
        return ch__fail(CH_INVALID_ARGUMENT,
                        "message: %zu bytes (want at most %zu); put large data into a "
                        "tensor",
                        n_bytes, CH_MESSAGE_MAX_BYTES);
    }
    b = ch__malloc(head + n_bytes);
    if (b == NULL) {
        drop_tensors(n_tensors, tensor);
        return ch__fail_memory("message");
    }
    b->size = (int64_t)n_bytes;
    for (int i = 0; i < n_tensors; i++) {
        b->tensor[i] = tensor[i];
        b->size += (int64_t)ch_tensor_bytes(tensor[i]);
        if (ch_tensor_dtype(tensor[i]) == CH_STR)
            b->size += text_bytes(tensor[i]);
    }
    atomic_init(&b->refs, 1);
    b->message = (ch_message){.method = method,
                              .n_bytes = n_bytes,
                              .bytes = n_bytes > 0 ? (char *)b + head : NULL,
                              .n_tensors = n_tensors,
                              .tensor = b->tensor};
    if (bytes != NULL)
        *bytes = n_bytes > 0 ? (char *)b + head : NULL;
    *out = &b->message;
    return CH_OK;
}

ch_message *ch__message_ref(ch_message *m)
{
    atomic_fetch_add_explicit(&block_of(m)->refs, 1, memory_order_relaxed);
    return m;
}

void ch__message_unref(ch_message *m)
{
    if (m == NULL ||
        atomic_fetch_sub_explicit(&block_of(m)->refs, 1, memory_order_acq_rel) != 1)
        return;
    drop_tensors(m->n_tensors, m->tensor);
    ch__free(m);
}

int64_t ch__message_size(const ch_message *m)
{
    return ((const block *)(const void *)m)->size;
}
