/* fuzz/file/alter_npy.c -- changes headers of .npy files so that their sizes fit.
 * SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

enum { TEXT_MOST = 600 };

/* ---- a new header ---- */

static size_t some_shape(dice *d, char *text, size_t room, uint64_t *count)
{
    size_t n = (size_t)snprintf(text, room, "(");
    int    rank = (int)roll(d, roll(d, 8) == 0 ? 11 : 4);

    *count = 1;
    for (int i = 0; i < rank; i++) {
        uint64_t size = roll(d, 8) == 0 ? some_size(d) : roll(d, 5);

        *count *= size;
        n += (size_t)snprintf(text + n, room - n, "%s%llu", i > 0 ? ", " : "",
                              (unsigned long long)size);
    }
    return n + (size_t)snprintf(text + n, room - n, rank == 1 ? ",)" : ")");
}

static const char *some_descr(dice *d, unsigned *size)
{
    static const char *const descr[] = {"<f4", ">f4", "|u1", "<i8", ">i2", "|b1", "<f2",
                                        "<u4", "=f8", "|i1", ">u8", "<u2", "<U4", "|S3",
                                        "|V2", "|O",  "<c8", "f4",  "|f4", "",    "<M8[D]"};
    const char              *s = descr[roll(d, roll(d, 4) > 0 ? 12 : 21)];

    *size = s[0] != '\0' && s[1] >= 'a' && s[2] >= '1' ? (unsigned)(s[2] - '0') : 1;
    return s;
}

/* Writes the three entries in random order. Sets *bytes to the size of all elements. */
static size_t some_text(dice *d, char *text, uint64_t *bytes)
{
    static const int order[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                   {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    const int       *o = order[roll(d, 6)];
    char             entry[3][320], shape[300];
    unsigned         size;
    uint64_t         count;
    char             quote = roll(d, 4) == 0 ? '"' : '\'';

    some_shape(d, shape, sizeof(shape), &count);
    snprintf(entry[0], sizeof(entry[0]), "%cdescr%c: %c%s%c", quote, quote, quote,
             some_descr(d, &size), quote);
    snprintf(entry[1], sizeof(entry[1]), "%cfortran_order%c: %s", quote, quote,
             roll(d, 3) == 0 ? "True" : "False");
    snprintf(entry[2], sizeof(entry[2]), "%cshape%c: %s", quote, quote, shape);
    *bytes = count * size;
    return (size_t)snprintf(text, TEXT_MOST, "{%s, %s, %s%s}%s", entry[o[0]], entry[o[1]],
                            entry[o[2]], roll(d, 2) == 0 ? ", " : "", "\n");
}

/* Writes a file with this header and n_data bytes. Returns its size; 0 if it does not fit. */
static size_t write_npy(dice *d, const char *text, size_t n_text, const uint8_t *old,
                        size_t n_old, size_t n_data, uint8_t *out, size_t max_size)
{
    static const uint8_t magic[8] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0};

    bool   is_wide = roll(d, 4) == 0;
    size_t before = is_wide ? 12 : 10, n = before + n_text + n_data;

    if (n > max_size)
        return 0;
    memcpy(out, magic, sizeof(magic));
    out[6] = is_wide ? (uint8_t)(2 + roll(d, 2)) : 1;
    for (size_t i = 8; i < before; i++)
        out[i] = (uint8_t)(n_text >> 8 * (i - 8));
    memcpy(out + before, text, n_text);
    for (size_t i = 0; i < n_data; i++)
        out[before + n_text + i] = n_old > 0 ? old[i % n_old] : (uint8_t)i;
    return n;
}

size_t alter_npy(dice *d, uint8_t *data, size_t size, size_t max_size)
{
    char     text[TEXT_MOST + 64];
    uint8_t  old[4096];
    size_t   n_old = size < sizeof(old) ? size : sizeof(old), n_text, head, before = 10;
    uint64_t bytes;

    if (size < 12 || max_size > sizeof(old))
        return 0;
    memcpy(old, data, n_old);
    if (data[6] > 1)
        before = 12;
    head = (size_t)(data[8] | data[9] << 8);
    if (before + head > size || head > TEXT_MOST || roll(d, 2) == 0) {
        n_text = some_text(d, text, &bytes);
        bytes += roll(d, 8) == 0 ? roll(d, 3) : 0;
        return write_npy(d, text, n_text, old, n_old,
                         bytes < 2000 ? (size_t)bytes : roll(d, 60), data, max_size);
    }
    /* Changes bytes of the existing header and corrects its length. */
    memcpy(text, data + before, head);
    n_text = LLVMFuzzerMutate((uint8_t *)text, head, TEXT_MOST);
    return write_npy(d, text, n_text, old + before + head, n_old - before - head,
                     n_old - before - head, data, max_size);
}
