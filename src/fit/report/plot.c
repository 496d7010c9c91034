/* fit/report/plot.c -- plots of numbers for terminals.
 *
 * A `plot` is a grid of cells, one for each character. The line is drawn as dots in the cells;
 * then the cells are printed with labels and axes. With UTF-8 a cell is a braille character of
 * 2 x 4 dots, otherwise a single dot. history_print.c is the caller.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "fit/report/plot.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/terminal.h"
#include "tensor/print.h"

enum { MIN_COLUMNS = 24, MIN_ROWS = 4, LABEL_BYTES = 16 };

/* Bit k of a cell is set if its dot k is set. */
typedef struct {
    bool          is_utf8;
    int           columns, rows; /* size in cells, without the axes */
    int           across, down;  /* dots of a cell, horizontally and vertically */
    double        low, high;     /* least and greatest finite number; NaN: there is none */
    int           label;         /* width of the labels beside the axis, in columns */
    unsigned char cell[CH_PLOT_ROWS][CH_PLOT_COLUMNS];
} plot;

static int clamp(int x, int min, int max)
{
    return x < min ? min : x > max ? max : x;
}

/* ---- dots ---- */

static void dot(plot *p, int x, int y)
{
    /* Bits of the dots in U+2800 and up. The lowest row has the last bits, because Unicode
     * inherits them from a later extension of braille. */
    static const unsigned char bit[4][2] = {
        {0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    int row = y / p->down, column = x / p->across;

    if (row >= 0 && row < p->rows && column >= 0 && column < p->columns)
        p->cell[row][column] |= bit[y % p->down][x % p->across];
}

static void line(plot *p, int x0, int y0, int x1, int y1)
{
    int n = abs(x1 - x0) > abs(y1 - y0) ? abs(x1 - x0) : abs(y1 - y0);

    for (int i = 0; i <= n; i++) {
        double part = n > 0 ? (double)i / n : 0;

        dot(p, x0 + (int)lrint(part * (x1 - x0)), y0 + (int)lrint(part * (y1 - y0)));
    }
}

static int dot_x(const plot *p, int i, int n)
{
    return n > 1 ? (int)lrint((double)i / (n - 1) * (p->columns * p->across - 1)) : 0;
}

/* Returns the row of dots of y. If all numbers are equal, it is the middle. Computes with
 * halves, so that the difference of two huge numbers cannot overflow. */
static int dot_y(const plot *p, double y)
{
    double span = p->high / 2 - p->low / 2;
    double part = span > 0 ? (p->high / 2 - y / 2) / span : 0.5;

    return (int)lrint(part * (p->rows * p->down - 1));
}

static void draw(plot *p, int n, const double *y)
{
    for (int i = 0; i < n; i++) {
        if (!isfinite(y[i]))
            continue;
        if (i > 0 && isfinite(y[i - 1]))
            line(p, dot_x(p, i - 1, n), dot_y(p, y[i - 1]), dot_x(p, i, n), dot_y(p, y[i]));
        else
            dot(p, dot_x(p, i, n), dot_y(p, y[i]));
    }
}

/* ---- text ---- */

/* Cuts a text that did not fit after its last whole line, because half an escape sequence would
 * color the text that follows. */
static void cut_to_lines(ch_text *o)
{
    size_t n;

    if (o->size == 0 || o->used < o->size)
        return;
    n = strlen(o->text);
    while (n > 0 && o->text[n - 1] != '\n')
        n--;
    o->text[n] = '\0';
}

/* Prints a cell: U+2800 plus its bits as UTF-8, or "*". */
static void add_cell(ch_text *o, const plot *p, unsigned bits)
{
    if (p->is_utf8 && bits != 0)
        ch__text_add(o, "\342%c%c", (char)(0xa0 | bits >> 6), (char)(0x80 | (bits & 0x3f)));
    else
        ch__text_add(o, bits != 0 ? "*" : " ");
}

/* Writes the label of a row: the greatest number at the top, the least at the bottom. "": the
 * row has none. */
static void label_of(const plot *p, int row, char label[LABEL_BYTES])
{
    double shown = NAN;

    if (p->low < p->high && row == 0)
        shown = p->high;
    else if (p->low < p->high && row == p->rows - 1)
        shown = p->low;
    else if (p->low == p->high && row == dot_y(p, p->low) / p->down)
        shown = p->low;
    label[0] = '\0';
    if (!isnan(shown))
        snprintf(label, LABEL_BYTES, "%.4g", shown);
}

static void add_row(ch_text *o, const plot *p, int row)
{
    char        label[LABEL_BYTES];
    const char *tick = p->is_utf8 ? "\u2524" : "+", *axis = p->is_utf8 ? "\u2502" : "|";
    int         last = p->columns;

    while (last > 0 && p->cell[row][last - 1] == 0) /* no spaces at the end of a line */
        last--;
    label_of(p, row, label);
    ch__text_add(o, "%*s %s", p->label, label, label[0] != '\0' ? tick : axis);
    for (int i = 0; i < last; i++)
        add_cell(o, p, p->cell[row][i]);
    ch__text_add(o, "\n");
}

/* Prints the horizontal axis and its label. */
static void add_axis(ch_text *o, const plot *p, const ch_plot_axis *axis)
{
    int first, last = snprintf(NULL, 0, "%" PRId64, axis->last);

    ch__text_add(o, "%*s %s", p->label, "", p->is_utf8 ? "\u2514" : "+");
    for (int i = 0; i < p->columns; i++)
        ch__text_add(o, p->is_utf8 ? "\u2500" : "-");
    ch__text_add(o, "\n%*s  ", p->label, "");
    first = axis->unit != NULL ? (int)strlen(axis->unit) + 1 : 0;
    if (first > 0)
        ch__text_add(o, "%s ", axis->unit);
    first += snprintf(NULL, 0, "%" PRId64, axis->first);
    ch__text_add(o, "%" PRId64, axis->first);
    if (axis->last > axis->first && first + 1 + last <= p->columns)
        ch__text_add(o, "%*" PRId64, p->columns - first, axis->last);
    ch__text_add(o, "\n");
}

/* Sets low and high to the least and the greatest finite number; to NaN if there is none. */
static void find_range(plot *p, int n, const double *y)
{
    p->low = p->high = NAN;
    for (int i = 0; i < n; i++) {
        if (!isfinite(y[i]))
            continue;
        p->low = y[i] < p->low || isnan(p->low) ? y[i] : p->low;
        p->high = y[i] > p->high || isnan(p->high) ? y[i] : p->high;
    }
}

/* Returns the width of the wider of the two labels. */
static int label_width(const plot *p)
{
    int low = snprintf(NULL, 0, "%.4g", p->low), high = snprintf(NULL, 0, "%.4g", p->high);

    return isnan(p->low) ? 1 : low > high ? low : high;
}

int ch__plot(const ch_plot_axis *axis, int n, const double *y, int columns, int rows,
             char *text, size_t size)
{
    ch_text o = ch__text(text, size);
    plot    p = {.is_utf8 = ch__locale_is_utf8()};

    n = y != NULL && n > 0 ? n : 0;
    find_range(&p, n, y);
    p.label = label_width(&p);
    p.across = p.is_utf8 ? 2 : 1;
    p.down = p.is_utf8 ? 4 : 1;
    p.columns = clamp(columns, MIN_COLUMNS, CH_PLOT_COLUMNS) - p.label - 2;
    p.rows = clamp(rows, MIN_ROWS, CH_PLOT_ROWS) - 2;
    draw(&p, n, y);
    for (int i = 0; i < p.rows; i++)
        add_row(&o, &p, i);
    add_axis(&o, &p, axis);
    cut_to_lines(&o);
    return ch__text_length(&o);
}
