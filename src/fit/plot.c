/* fit/plot.c -- small pictures for terminals.   SPDX-License-Identifier: Apache-2.0 */
#include "fit/plot.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/terminal.h"
#include "tensor/print.h"

enum { LEAST_COLUMNS = 24, LEAST_ROWS = 4, LABEL = 16 };

/* A character is a cell of dots: 2 x 4 in braille, one in ASCII. Its bits are those of the
 * dots. */
typedef struct {
    bool          is_utf8;
    int           columns, rows; /* of cells, without the axes */
    int           across, down;  /* dots of a cell */
    double        low, high;     /* of the numbers */
    int           label;         /* columns of the numbers beside the axis */
    unsigned char cell[CH_PLOT_ROWS][CH_PLOT_COLUMNS];
} plot;

static int between(int x, int least, int most)
{
    return x < least ? least : x > most ? most : x;
}

/* ---- dots ---- */

static void dot(plot *p, int x, int y)
{
    /* The bits of braille, U+2800 and up: the lowest row was added later. */
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

/* Numbers that are all the same are in the middle. Halves, or the span of two huge ones would
 * be infinite. */
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

/* Of text that does not fit the whole lines stay: half a sequence would color all that comes
 * behind it. */
static void end_whole(ch_text *o)
{
    size_t n;

    if (o->size == 0 || o->used < o->size)
        return;
    n = strlen(o->text);
    while (n > 0 && o->text[n - 1] != '\n')
        n--;
    o->text[n] = '\0';
}

/* U+2800 and up, as UTF-8. */
static void add_cell(ch_text *o, const plot *p, unsigned bits)
{
    if (p->is_utf8 && bits != 0)
        ch__text_add(o, "\342%c%c", (char)(0xa0 | bits >> 6), (char)(0x80 | (bits & 0x3f)));
    else
        ch__text_add(o, bits != 0 ? "*" : " ");
}

/* Beside the row that shows a number, that number. */
static void label_of(const plot *p, int row, char label[LABEL])
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
        snprintf(label, LABEL, "%.4g", shown);
}

static void add_row(ch_text *o, const plot *p, int row)
{
    char        label[LABEL];
    const char *tick = p->is_utf8 ? "\u2524" : "+", *axis = p->is_utf8 ? "\u2502" : "|";
    int         last = p->columns;

    while (last > 0 && p->cell[row][last - 1] == 0) /* no blanks at the end */
        last--;
    label_of(p, row, label);
    ch__text_add(o, "%*s %s", p->label, label, label[0] != '\0' ? tick : axis);
    for (int i = 0; i < last; i++)
        add_cell(o, p, p->cell[row][i]);
    ch__text_add(o, "\n");
}

/* The axis below, and what the first and the last number are of. */
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

/* Between the least and the greatest; both NaN if no number is finite. */
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

/* As wide as the widest of the two numbers. */
static int label_width(const plot *p)
{
    int low = snprintf(NULL, 0, "%.4g", p->low), high = snprintf(NULL, 0, "%.4g", p->high);

    return isnan(p->low) ? 1 : low > high ? low : high;
}

int ch__plot(int n, const double *y, int columns, int rows, char *text, size_t size)
{
    n = y != NULL && n > 0 ? n : 0;
    return ch__plot_over(&(ch_plot_axis){.first = n > 0, .last = n}, n, y, columns, rows, text,
                         size);
}

int ch__plot_over(const ch_plot_axis *axis, int n, const double *y, int columns, int rows,
                  char *text, size_t size)
{
    ch_text o = ch__text(text, size);
    plot    p = {.is_utf8 = ch__speaks_utf8()};

    n = y != NULL && n > 0 ? n : 0;
    find_range(&p, n, y);
    p.label = label_width(&p);
    p.across = p.is_utf8 ? 2 : 1;
    p.down = p.is_utf8 ? 4 : 1;
    p.columns = between(columns, LEAST_COLUMNS, CH_PLOT_COLUMNS) - p.label - 2;
    p.rows = between(rows, LEAST_ROWS, CH_PLOT_ROWS) - 2;
    draw(&p, n, y);
    for (int i = 0; i < p.rows; i++)
        add_row(&o, &p, i);
    add_axis(&o, &p, axis);
    end_whole(&o);
    return ch__text_length(&o);
}

/* ---- pixels ---- */

typedef struct {
    int          height, width;
    const float *pixel;
    float        low, high;
} image;

static void find_shades(image *m)
{
    m->low = INFINITY;
    m->high = -INFINITY;
    for (int i = 0; i < m->height * m->width; i++) {
        if (!isfinite(m->pixel[i]))
            continue;
        m->low = fminf(m->low, m->pixel[i]);
        m->high = fmaxf(m->high, m->pixel[i]);
    }
}

/* 0 is dark, 1 is bright; what is outside of the image, or not a number, is dark. */
static double shade(const image *m, int row, int column)
{
    double x = row < m->height ? (double)m->pixel[row * m->width + column] : NAN;
    double span = (double)m->high - m->low;

    return isnan(x) || !(span > 0) ? 0 : fmin(fmax((x - m->low) / span, 0), 1);
}

/* The upper half of a cell in one color, the lower in another: of the 24 greys of 256 colors.
 * Cells of the same two need not say so again. */
static void add_colors(ch_text *o, const image *m, int row)
{
    int now[2] = {-1, -1};

    for (int i = 0; i < m->width; i++) {
        int upper = 232 + (int)lrint(23 * shade(m, row, i));
        int lower = 232 + (int)lrint(23 * shade(m, row + 1, i));

        if (upper != now[0] || lower != now[1])
            ch__text_add(o, "\033[38;5;%d;48;5;%dm", upper, lower);
        ch__text_add(o, "\u2580");
        now[0] = upper;
        now[1] = lower;
    }
    ch__text_add(o, "\033[0m\n");
}

/* The mean of both, as more or less of the cell. */
static void add_shades(ch_text *o, const image *m, int row, bool is_utf8)
{
    static const char *const unicode[] = {" ", "\u2591", "\u2592", "\u2593", "\u2588"};
    static const char        ascii[] = " .:-=+*#%@";

    for (int i = 0; i < m->width; i++) {
        double x = shade(m, row, i);

        if (row + 1 < m->height)
            x = (x + shade(m, row + 1, i)) / 2;
        if (is_utf8)
            ch__text_add(o, "%s", unicode[lrint(4 * x)]);
        else
            ch__text_add(o, "%c", ascii[lrint(9 * x)]);
    }
    ch__text_add(o, "\n");
}

int ch__picture(int height, int width, const float *pixel, char *text, size_t size)
{
    ch_text o = ch__text(text, size);
    image   m = {.height = height, .width = width, .pixel = pixel};
    bool    is_utf8 = ch__speaks_utf8();
    bool    has_color = is_utf8 && ch__terminal(STDOUT_FILENO).has_color;

    if (pixel == NULL || height <= 0 || width <= 0)
        return 0;
    find_shades(&m);
    for (int row = 0; row < height; row += 2) {
        if (has_color)
            add_colors(&o, &m, row);
        else
            add_shades(&o, &m, row, is_utf8);
    }
    end_whole(&o);
    return ch__text_length(&o);
}
