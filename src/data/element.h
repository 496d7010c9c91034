/* data/element.h -- elements: the values that move through a pipeline, lighter than tuples.
 *
 * An element is a single allocation: its parts (the components), references to the buffers that
 * the parts point into, and room for small values. The data of a part is contiguous and may lie
 * anywhere, for example in the middle of a block of a file. It may be unaligned, so it must be
 * read with memcpy. The data of a string part (CH_STR) is an array of ch_str, which is aligned.
 *
 * An element has one owner at a time. It must not be changed while another thread can see it.
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

/* The position of an element in a file, for messages. The path belongs to a block that the
 * element references. */
typedef struct ch_origin {
    const char *path;
    int64_t     offset; /* bytes */
} ch_origin;

typedef struct ch_element {
    int  n, n_owners;
    int  capacity; /* bytes of its memory; 0: the memory has exactly the size of the element */
    bool is_note;  /* its memory belongs to owner[0], a block (ch__block_alloc_note) */
    bool is_row;   /* each part is a row of a tensor of the dataset (data/row_ref.h) */
    int64_t     bytes; /* size of the element, with its room */
    void       *room;  /* memory for small values of the parts, aligned to 16 */
    ch_buffer **owner; /* n_owners referenced buffers that parts point into; each may be NULL */
    const ch_origin *origin; /* in the room; NULL: not known, or the element was copied */
    ch_part          part[]; /* n */
} ch_element;

/* Returns an element with zero parts and owners; NULL: out of memory. The caller owns it. */
ch_element *ch__element_new(int n, int n_owners, size_t room_bytes);
/* Like ch__element_new, for an element whose parts point into a block. Adds a reference to the
 * block as owner[0]. If the block has room for notes, the element lies in that memory, close to
 * its data. */
ch_element *ch__element_note(int n, int n_owners, size_t room_bytes, ch_buffer *block);
void        ch__element_free(ch_element *e); /* NULL is allowed */
/* Creates an element with other parts in the memory of `e`. The caller must have taken the
 * owners out of `e`, which is invalid afterwards. If the new element does not fit, returns NULL
 * and leaves `e` unchanged. */
ch_element *ch__element_remake(ch_element *e, int n, int n_owners, size_t room_bytes);

/* A growable list of elements, which it owns. All zero is an empty list. */
typedef struct ch_elements {
    int          n, capacity;
    ch_element **at;
} ch_elements;

/* Appends the element. Takes ownership of it, even on error. `user` names the caller in the
 * out-of-memory message. */
ch_status ch__elements_add(ch_elements *l, ch_element *e, const char *user);
void      ch__elements_empty(ch_elements *l); /* frees the elements; keeps the array */
void      ch__elements_drop(ch_elements *l);  /* frees the elements and the array */

/* Returns the bytes of the part's data, including the contents of strings. */
int64_t ch__part_bytes(const ch_part *p);

/* Returns the bytes that an element keeps in use: its own and those that its parts point at. */
int64_t ch__element_bytes(const ch_element *e);

/* Returns a buffer that owns the element, so that others can point into it; NULL: out of
 * memory. Takes ownership of the element, even on error. */
ch_buffer *ch__element_buffer(ch_element *e);
/* Creates an element of a single i64 scalar. */
ch_status ch__element_of_int(int64_t value, ch_element **out);

/* Creates an element of the tensors of a tuple, which must be plain values. Contiguous tensors
 * are referenced, strided tensors are copied. */
ch_status ch__element_of_tuple(const ch_tuple *t, ch_element **out);
/* Creates a tuple of plain tensors over the element. Takes ownership of the element, even on
 * error. Parts that are not aligned for their dtype are copied. `spec` gives the names; NULL:
 * no names. */
ch_status ch__element_to_tuple(ch_element *e, const ch_tensor_spec *spec, ch_tuple **out);
/* Like ch__element_to_tuple for n elements, one for each replica: creates per-replica values.
 * All devices use the memory of this machine, so no data is copied: element i is assigned to
 * device[i]. device NULL: the current device. */
ch_status ch__elements_to_tuple(int n, ch_element *const *e, const ch_tensor_spec *spec,
                                ch_device *const *device, ch_tuple **out);
/* Creates a second element with the same parts. References the buffers and copies the room. */
ch_status ch__element_share(const ch_element *e, ch_element **out);
/* Creates a deep copy, which points only into its own memory. */
ch_status ch__element_copy(const ch_element *e, ch_element **out);

#endif
