#!/usr/bin/env python3
"""optimizers.py -- ten steps of every update rule, in numpy's float64, as a C table.

    python3 test/golden/optimizers.py > test/golden/optimizers.inc

The rules are written from their definitions: Keras 2.11's for SGD, Adagrad, RMSprop, Adam,
AdamW, Adamax and FTRL, You et al. 2019 for LAMB, and for row-wise Adagrad the mean of squares
of each row. Sparse steps add up rows of equal ids, then change only the rows with a gradient;
rules that change all rows get a dense gradient.

SPDX-License-Identifier: Apache-2.0
"""
import numpy as np

STEPS, ROWS, WIDTH, IDS = 10, 4, 2, 5
RATE = 0.1


def keras(beta1=0.9, beta2=0.999, epsilon=1e-7):
    return dict(beta1=beta1, beta2=beta2, epsilon=epsilon)


# name: (rule, options, whether it has a sparse form)
CASES = {
    'sgd': ('sgd', {}, True),
    'sgd_decay': ('sgd', dict(decay=0.05), True),
    'momentum': ('sgd', dict(momentum=0.9), True),
    'nesterov': ('sgd', dict(momentum=0.9, nesterov=True), True),
    'adagrad': ('adagrad', dict(initial=0.1, epsilon=1e-7), True),
    'adagrad_rows': ('adagrad_rows', dict(initial=0.2, epsilon=1e-5), True),
    'rmsprop': ('rmsprop', dict(rho=0.9, epsilon=1e-7), False),
    'rmsprop_momentum': ('rmsprop', dict(rho=0.8, epsilon=1e-7, momentum=0.7), False),
    'rmsprop_centered': ('rmsprop', dict(rho=0.9, epsilon=1e-3, centered=True), False),
    'rmsprop_both': ('rmsprop', dict(rho=0.9, epsilon=1e-3, centered=True, momentum=0.5), False),
    'adam': ('adam', keras(), True),
    'adam_other': ('adam', keras(0.8, 0.95, 1e-4), True),
    'amsgrad': ('adam', dict(keras(beta2=0.5), amsgrad=True), True),
    'adamw': ('adam', dict(keras(), decay=0.01), True),
    'adamax': ('adamax', keras(), False),
    'ftrl': ('ftrl', dict(initial=0.1, power=-0.5), True),
    'ftrl_other': ('ftrl', dict(initial=0.3, power=-0.7, l1=0.02, l2=0.03, shrink=0.04, beta=0.5),
                   True),
    'lamb': ('lamb', dict(keras(epsilon=1e-6), decay=0.01), False),
}


def first_slots(rule, o, shape):
    zeros = lambda: np.zeros(shape)
    if rule == 'sgd':
        return {'momentum': zeros()} if o.get('momentum') else {}
    if rule == 'adagrad':
        return {'accumulator': np.full(shape, o['initial'])}
    if rule == 'adagrad_rows':
        return {'accumulator': np.full(shape[:1], o['initial'])}
    if rule == 'rmsprop':
        slots = {'velocity': zeros()}
        if o.get('centered'):
            slots['mean'] = zeros()
        if o.get('momentum'):
            slots['momentum'] = zeros()
        return slots
    if rule == 'adamax':
        return {'m': zeros(), 'u': zeros()}
    if rule == 'ftrl':
        return {'accumulator': np.full(shape, o['initial']), 'linear': zeros()}
    slots = {'m': zeros(), 'v': zeros()}
    if o.get('amsgrad'):
        slots['v_hat'] = zeros()
    return slots


def step(rule, o, w, g, s, t):
    """Returns the new w; changes the slots in place. t counts from 1."""
    if rule != 'lamb':
        w = w - RATE * o.get('decay', 0) * w
    if rule == 'sgd':
        if not s:
            return w - RATE * g
        s['momentum'][...] = o['momentum'] * s['momentum'] - RATE * g
        if o.get('nesterov'):
            return w + o['momentum'] * s['momentum'] - RATE * g
        return w + s['momentum']
    if rule == 'adagrad':
        s['accumulator'] += g ** 2
        return w - RATE * g / np.sqrt(s['accumulator'] + o['epsilon'])
    if rule == 'adagrad_rows':
        s['accumulator'] += np.mean(g ** 2, axis=1)
        return w - RATE * g / np.sqrt(s['accumulator'] + o['epsilon'])[:, None]
    if rule == 'rmsprop':
        s['velocity'][...] = o['rho'] * s['velocity'] + (1 - o['rho']) * g ** 2
        below = s['velocity'] + o['epsilon']
        if 'mean' in s:
            s['mean'][...] = o['rho'] * s['mean'] + (1 - o['rho']) * g
            below = below - s['mean'] ** 2
        update = RATE * g / np.sqrt(below)
        if 'momentum' in s:
            s['momentum'][...] = o['momentum'] * s['momentum'] + update
            update = s['momentum']
        return w - update
    if rule == 'ftrl':
        old, new = s['accumulator'].copy(), s['accumulator'] + g ** 2
        s['linear'] += (g + 2 * o.get('shrink', 0) * w
                        - (new ** -o['power'] - old ** -o['power']) / RATE * w)
        s['accumulator'][...] = new
        l1, l2 = o.get('l1', 0), o.get('l2', 0) + o.get('beta', 0) / (2 * RATE)
        quadratic = new ** -o['power'] / RATE + 2 * l2
        return (np.clip(s['linear'], -l1, l1) - s['linear']) / quadratic
    s['m'][...] = o['beta1'] * s['m'] + (1 - o['beta1']) * g
    if rule == 'adamax':
        s['u'][...] = np.maximum(o['beta2'] * s['u'], np.abs(g))
        return w - RATE / (1 - o['beta1'] ** t) * s['m'] / (s['u'] + o['epsilon'])
    s['v'][...] = o['beta2'] * s['v'] + (1 - o['beta2']) * g ** 2
    if rule == 'lamb':
        m, v = s['m'] / (1 - o['beta1'] ** t), s['v'] / (1 - o['beta2'] ** t)
        update = m / (np.sqrt(v) + o['epsilon']) + o['decay'] * w
        return w - RATE * np.linalg.norm(w) / np.linalg.norm(update) * update
    v = s['v']
    if 'v_hat' in s:
        s['v_hat'][...] = np.maximum(s['v_hat'], s['v'])
        v = s['v_hat']
    alpha = RATE * np.sqrt(1 - o['beta2'] ** t) / (1 - o['beta1'] ** t)
    return w - alpha * s['m'] / (np.sqrt(v) + o['epsilon'])


def run(case, first, gradients, ids=None):
    rule, o, has_sparse = CASES[case]
    w, s = first.copy(), first_slots(rule, o, first.shape)
    path = []
    for t in range(1, STEPS + 1):
        g = gradients[t - 1]
        if ids is None:
            w = step(rule, o, w, g, s, t)
        else:
            whole = np.zeros_like(first)
            np.add.at(whole, ids[t - 1], g)
            if has_sparse:
                rows = np.unique(ids[t - 1])
                part = {k: v[rows] for k, v in s.items()}
                w = w.copy()
                w[rows] = step(rule, o, w[rows], whole[rows], part, t)
                for k, v in part.items():
                    s[k][rows] = v
            else:
                w = step(rule, o, w, whole, s, t)
        path.append(w)
    return np.array(path), s


def table(name, array, kind='double'):
    flat = np.asarray(array).reshape(-1)
    text = ', '.join('%d' % x if kind != 'double' else '%.12g' % x for x in flat)
    lines, line = [], '   '
    for word in text.split(' '):
        if len(line) + len(word) > 95:
            lines.append(line)
            line = '   '
        line += ' ' + word
    print('static const %s %s[] = {' % (kind, name))
    print('\n'.join(lines + [line]))
    print('};')


def main():
    rng = np.random.default_rng(20231)
    exact = lambda shape: np.round(rng.uniform(-1, 1, shape) * 1024) / 1024  # in any dtype
    first, dense, rows = exact((ROWS, WIDTH)), exact((STEPS, ROWS, WIDTH)), exact((STEPS, IDS, WIDTH))
    ids = rng.integers(0, ROWS, (STEPS, IDS))
    print('/* Made by test/golden/optimizers.py.   SPDX-License-Identifier: Apache-2.0 */')
    print('enum { G_STEPS = %d, G_ROWS = %d, G_WIDTH = %d, G_IDS = %d };' % (STEPS, ROWS, WIDTH, IDS))
    table('g_first', first)
    table('g_dense', dense)
    table('g_rows', rows)
    table('g_ids', ids, 'long')
    for case in CASES:
        for form, arguments in (('dense', (dense,)), ('sparse', (rows, ids))):
            path, slots = run(case, first, *arguments)
            table('g_%s_%s' % (case, form), path)
            for slot, value in slots.items():
                table('g_%s_%s_%s' % (case, form, slot), value)
    print('static const struct golden {')
    print('    const char *name;')
    print('    const double *dense, *sparse;')
    print('    const char *slot[3];')
    print('    const double *dense_slot[3], *sparse_slot[3];')
    print('} g_cases[] = {')
    for case, (rule, o, _) in CASES.items():
        slots = list(first_slots(rule, o, first.shape)) or []
        names = ', '.join('"%s"' % x for x in slots) or 'NULL'
        of = lambda form: ', '.join('g_%s_%s_%s' % (case, form, x) for x in slots) or 'NULL'
        print('    {"%s", g_%s_dense, g_%s_sparse, {%s},' % (case, case, case, names))
        print('     {%s}, {%s}},' % (of('dense'), of('sparse')))
    print('};')


if __name__ == '__main__':
    main()
