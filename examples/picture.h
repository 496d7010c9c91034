/* examples/picture.h -- an image as text, for terminals.
 *
 *     print_picture(stdout, height, width, pixel);
 *
 * A line of text shows two rows of pixels. On a terminal with colors it has half blocks in 24
 * shades of grey, otherwise characters: the brighter the pixels, the denser the character.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef EXAMPLES_PICTURE_H
#define EXAMPLES_PICTURE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct picture {
    int            height, width;
    const uint8_t *pixel;     /* height x width bytes */
    int            low, high; /* darkest and brightest pixel */
} picture;

/* Returns true if the locale is UTF-8: the first of these variables that is set decides. */
static inline bool is_utf8_locale(void)
{
    const char *const name[] = {"LC_ALL", "LC_CTYPE", "LANG"};

    for (int i = 0; i < 3; i++) {
        const char *value = getenv(name[i]);

        if (value != NULL && value[0] != '\0')
            return strstr(value, "UTF-8") != NULL || strstr(value, "utf8") != NULL;
    }
    return false;
}

static inline bool has_colors(FILE *f)
{
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");

    return isatty(fileno(f)) == 1 && term != NULL && strcmp(term, "dumb") != 0 &&
           (no_color == NULL || no_color[0] == '\0');
}

/* Returns the brightness of a pixel, from 0 (dark) to 1. A row below the image is dark. */
static inline double shade(const picture *p, int row, int column)
{
    if (row >= p->height || p->high == p->low)
        return 0;
    return (double)(p->pixel[row * p->width + column] - p->low) / (p->high - p->low);
}

/* Prints two rows as half blocks. The escape sequence is repeated only if a shade changes. */
static inline void print_greys(FILE *f, const picture *p, int row)
{
    int now[2] = {-1, -1};

    for (int i = 0; i < p->width; i++) {
        int upper = 232 + (int)lrint(23 * shade(p, row, i));
        int lower = 232 + (int)lrint(23 * shade(p, row + 1, i));

        if (upper != now[0] || lower != now[1])
            fprintf(f, "\033[38;5;%d;48;5;%dm", upper, lower);
        fputs("\u2580", f);
        now[0] = upper;
        now[1] = lower;
    }
    fputs("\033[0m\n", f);
}

/* Prints two rows as characters, each for the mean of two pixels. */
static inline void print_characters(FILE *f, const picture *p, int row, bool is_utf8)
{
    static const char *const unicode[] = {" ", "\u2591", "\u2592", "\u2593", "\u2588"};
    static const char        ascii[] = " .:-=+*#%@";

    for (int i = 0; i < p->width; i++) {
        double x = shade(p, row, i);

        if (row + 1 < p->height)
            x = (x + shade(p, row + 1, i)) / 2;
        if (is_utf8)
            fputs(unicode[lrint(4 * x)], f);
        else
            fputc(ascii[lrint(9 * x)], f);
    }
    fputc('\n', f);
}

static inline void print_picture(FILE *f, int height, int width, const uint8_t *pixel)
{
    picture p = {height, width, pixel, 255, 0};
    bool    is_utf8 = is_utf8_locale(), is_grey = is_utf8 && has_colors(f);

    for (int i = 0; i < height * width; i++) {
        p.low = pixel[i] < p.low ? pixel[i] : p.low;
        p.high = pixel[i] > p.high ? pixel[i] : p.high;
    }
    for (int row = 0; row < height; row += 2)
        if (is_grey)
            print_greys(f, &p, row);
        else
            print_characters(f, &p, row, is_utf8);
}

#endif
