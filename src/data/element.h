/* data/element.h -- what moves through a pipeline: an element, lighter than a tuple.
 *
 * An element is one allocation: its parts (the components), the buffers they look into, and room
 * for small values. A part's data is contiguous and may lie anywhere, in the middle of a block
 * of a file too: nothing is promised about its alignment, so it is read with memcpy. Of strings
 * (CH_STR) the data is an array of ch_str, which is aligned.
 *
 * An element has one owner at a time and is never changed while another thread can see it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_ELEMENT_H
#define DATA_ELEMENT_H

#include "tensor/tensor.h"

typedef struct ch_part {
    ch_dtype    dtype;
    ch_shape    shape;
    const void *data;
    size_t      room; /* bytes behind the data that may be read (tensor/ragged.h) */
} ch_part;

/* Where in a file an element stood, for messages; the path is that of a block the element holds. */
typedef struct ch_origin {
    const char *path;
    int64_t     offset;
} ch_origin;

typedef struct ch_element {
    int         n, n_owners;
    int         capacity; /* bytes of the memory that it is in; 0: as many as it has */
    bool        is_note;  /* that memory is its first owner's, a block's */
    int64_t     bytes;    /* of memory, about, that it keeps to itself */
    void       *room;     /* room_bytes, aligned to 16; of the parts' small values */
    ch_buffer **owner; /* n_owners referenced buffers that parts look into; may be NULL each */
    const ch_origin *origin; /* in its room; NULL: not known, or it was copied */
    ch_part          part[]; /* n */
} ch_element;

/* Parts and owners are zero. NULL: no memory. */
ch_element *ch__element_new(int n, int n_owners, size_t room_bytes);
/* One that looks into a block, its first owner, which is referenced: in the notes of the block while those
 * have room, beside what it looks at. */
ch_element *ch__element_note(int n, int n_owners, size_t room_bytes, ch_buffer *block);
void        ch__element_free(ch_element *e); /* NULL is fine */
/* An element of other parts in the memory of `e`, which is gone then; its owners were the caller's to take. NULL: it
 * would not fit, and `e` is as it was. */
ch_element *ch__element_remake(ch_element *e, int n, int n_owners, size_t room_bytes);

/* Elements, as many as come. A list that is zero is empty. */
typedef struct ch_elements {
    int          n, capacity;
    ch_element **at;
} ch_elements;

/* Takes the element over, on an error too, which says that `whose` memory it was. */
ch_status ch__elements_add(ch_elements *l, ch_element *e, const char *whose);
void      ch__elements_empty(ch_elements *l); /* frees them; the room for them stays */
void      ch__elements_drop(ch_elements *l);  /* that too */

/* Bytes that the part's data takes; strings with what they hold. */
int64_t ch__part_bytes(const ch_part *p);

/* Bytes that an element keeps from being used for anything else: its own, and those it looks at. */
int64_t ch__element_bytes(const ch_element *e);

/* A buffer that keeps an element, which it takes over, for others to look into. NULL: no memory. */
ch_buffer *ch__element_buffer(ch_element *e);
/* An element of one i64 scalar. */
ch_status ch__element_of_int(int64_t value, ch_element **out);

/* An element of plain tensors, which are referenced (strided ones copied). */
ch_status ch__element_of_tuple(const ch_tuple *t, ch_element **out);
/* A tuple of plain tensors over the element, which it takes over, on an error too. Parts that are
 * not aligned for their type are copied. `spec` gives the names. */
ch_status ch__element_to_tuple(ch_element *e, const ch_tensor_spec *spec, ch_tuple **out);
/* The same for n elements, one for each replica, which are taken over: per-replica values. The
 * memory of all devices is this machine's, so that nothing is copied: it is said to be
 * device[i]'s from now on. NULL: the current device's. */
ch_status ch__elements_to_tuple(int n, ch_element *const *e, const ch_tensor_spec *spec,
                                ch_device *const *device, ch_tuple **out);
/* Another element of the same parts: it references the buffers, and copies what is in the room. */
ch_status ch__element_share(const ch_element *e, ch_element **out);
/* A copy that looks into nothing but its own memory. */
ch_status ch__element_copy(const ch_element *e, ch_element **out);

#endif
