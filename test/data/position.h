/* test/data/position.h -- checks the contents of saved positions.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_DATA_POSITION_H
#define TEST_DATA_POSITION_H

#include "data/dataset.pb-c.h"
#include "pipeline.h"

/* Returns true if a position has only references, of a few bytes each, and numbers. */
static inline bool t_is_small(const void *bytes, size_t n)
{
    Cohort__Position *p = cohort__position__unpack(NULL, n, bytes);
    size_t            n_rows = 0, n_data = 0;

    assert_non_null(p);
    for (size_t i = 0; i < p->n_states; i++)
        for (size_t k = 0; k < p->states[i]->n_elements; k++) {
            n_rows += p->states[i]->elements[k]->count;
            n_data += p->states[i]->elements[k]->n_parts;
        }
    cohort__position__free_unpacked(p, NULL);
    return n_data == 0 && n <= 1000 + 10 * n_rows;
}

#endif
