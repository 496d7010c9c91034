/* file/record_writer.c -- writes TFRecord files (TR-1).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"
#include "base/fault.h"
#include "base/mem.h"
#include "file/crc32c.h"
#include "file/record.h"
#include "file/writer.h"

struct ch_record_writer {
    ch_writer *w;
};

ch_status ch_record_writer_open(const char *path, const ch_save_options *opt,
                                ch_record_writer **out)
{
    ch_record_writer *x;
    ch_status         rc = ch__check_not_null("TFRecord file", "path", path, "out", out);

    if (rc != CH_OK)
        return rc;
    x = ch__calloc(1, sizeof(*x));
    if (x == NULL)
        return ch__fail_memory("TFRecord file");
    rc = ch__writer_open(path, opt, &x->w);
    if (rc != CH_OK) {
        ch__free(x);
        return rc;
    }
    *out = x;
    return CH_OK;
}

ch_record_frame ch__record_frame(const void *data, size_t n)
{
    ch_record_frame f;

    ch__put_le(f.head, n, 8);
    ch__put_le(f.head + 8, ch__crc32c_mask(ch__crc32c(0, f.head, 8)), 4);
    ch__put_le(f.foot, ch__crc32c_mask(ch__crc32c(0, data, n)), 4);
    return f;
}

ch_status ch_record_writer_add(ch_record_writer *x, ch_str record)
{
    ch_record_frame f;
    ch_status       rc = ch__check_not_null("TFRecord file", "the writer", x, NULL, NULL);

    if (rc != CH_OK)
        return rc;
    if (record.data == NULL && record.size > 0)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: a record of %zu bytes has no data (NULL)",
                        ch__writer_path(x->w), record.size);
    f = ch__record_frame(record.data, record.size);
    rc = ch__writer_put(x->w, f.head, sizeof(f.head));
    if (rc == CH_OK)
        rc = ch__writer_put(x->w, record.data, record.size);
    return rc == CH_OK ? ch__writer_put(x->w, f.foot, sizeof(f.foot)) : rc;
}

ch_status ch_record_writer_add_example(ch_record_writer *x, ch_example *e)
{
    ch_str    bytes;
    ch_status rc = ch__check_not_null("TFRecord file", "the writer", x, "the example", e);

    if (rc != CH_OK)
        return rc;
    rc = ch_example_encode(e, &bytes);
    return rc == CH_OK ? ch_record_writer_add(x, bytes) : ch__writer_fail(x->w, rc);
}

ch_status ch_record_writer_close(ch_record_writer *x)
{
    ch_status rc = ch__check_not_null("TFRecord file", "the writer", x, NULL, NULL);

    if (rc != CH_OK)
        return rc;
    rc = ch__writer_commit(x->w);
    ch__free(x);
    return rc;
}

void ch_record_writer_drop(ch_record_writer *x)
{
    if (x == NULL)
        return;
    ch__writer_drop(x->w);
    ch__free(x);
}
