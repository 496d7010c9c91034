/* test/data/help.h -- functions shared by the tests of the data module.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_DATA_HELP_H
#define TEST_DATA_HELP_H

#include "../file/help.h"
#include "file/reader.h"

static inline ch_str t_text(const char *s)
{
    return (ch_str){s, strlen(s)};
}

/* Returns a copy in a block of its own, so that a sanitizer finds a read past its end. The
 * caller must free() it. */
static inline char *t_alone(const void *data, size_t n)
{
    char *alone = malloc(n > 0 ? n : 1);

    assert_non_null(alone);
    memcpy(alone, data, n);
    return alone;
}

static inline ch_reader *t_reader(const void *data, size_t n)
{
    ch_reader *r = NULL;

    assert_int_equal(ch__reader_open(t_write("text", data, n), NULL, NULL, &r), CH_OK);
    return r;
}

#endif
