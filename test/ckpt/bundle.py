"""bundle.py -- reads and writes checkpoints of the format TensorBundle V2, in plain Python.

This second implementation was written from the description of the format and shares no code with src/ckpt/.
read(prefix) returns {name: (dtype, shape, bytes or list of bytes)}, write(prefix, tensors) takes the same; a tensor
may also be ('slices', dtype, shape, [(begin, size, bytes), ...]). read_whole(prefix) joins slices, and a delta with its
base.

    python3 test/ckpt/bundle.py --seeds fuzz/corpus     writes the seeds of fuzz/ckpt*.c and their like

SPDX-License-Identifier: Apache-2.0
"""
import os
import struct
import sys
import tempfile

MAGIC = bytes.fromhex('57fb808b247547db')
SIZES = {1: 4, 2: 8, 3: 4, 4: 1, 5: 2, 6: 1, 8: 8, 9: 8, 10: 1, 14: 2, 17: 2, 18: 16, 19: 2, 22: 4, 23: 8}
STRING = 7


def crc_table():
    for i in range(256):
        for _ in range(8):
            i = i >> 1 ^ (0x82f63b78 if i & 1 else 0)
        yield i


TABLE = list(crc_table())


def crc32c(data, crc=0):
    crc ^= 0xffffffff
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 255]
    return crc ^ 0xffffffff


def mask(crc):
    return ((crc >> 15 | crc << 17 & 0xffffffff) + 0xa282ead8) & 0xffffffff


# ---- varints and messages ----

def varint(x):
    x &= (1 << 64) - 1
    out = b''
    while x >= 128:
        out += bytes([x & 127 | 128])
        x >>= 7
    return out + bytes([x])


def get_varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at


def field(number, value):
    """Returns a field with an integer (absent if 0) or with bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value) if value else b''
    return varint(number << 3 | 2) + varint(len(value)) + value


def fields(data):
    at = 0
    while at < len(data):
        tag, at = get_varint(data, at)
        if tag & 7 == 0:
            value, at = get_varint(data, at)
        elif tag & 7 == 2:
            size, at = get_varint(data, at)
            value, at = data[at:at + size], at + size
        elif tag & 7 == 5:
            value, at = struct.unpack_from('<I', data, at)[0], at + 4
        elif tag & 7 == 1:
            value, at = struct.unpack_from('<Q', data, at)[0], at + 8
        else:
            raise ValueError(f'wire type {tag & 7}')
        yield tag >> 3, value


def first(data, number, default=0):
    return next((v for n, v in fields(data) if n == number), default)


# ---- tables ----

def block(entries, interval):
    out, restarts, last = b'', [], b''
    for i, (key, value) in enumerate(entries):
        shared = 0
        if i % interval == 0:
            restarts.append(len(out))
        else:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        out += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    restarts = restarts or [0]
    return out + struct.pack(f'<{len(restarts) + 1}I', *restarts, len(restarts))


def parse_block(data):
    count, = struct.unpack_from('<I', data, len(data) - 4)
    end, at, key = len(data) - 4 - 4 * count, 0, b''
    while at < end:
        shared, at = get_varint(data, at)
        unshared, at = get_varint(data, at)
        size, at = get_varint(data, at)
        key = key[:shared] + data[at:at + unshared]
        at += unshared
        yield key, data[at:at + size]
        at += size


def snappy(data):
    """Decompresses a snappy block."""
    size, at = get_varint(data, 0)
    out = bytearray()
    while at < len(data):
        tag = data[at]
        at += 1
        if tag & 3 == 0:
            n = (tag >> 2) + 1
            if n > 60:
                extra = n - 60
                n = int.from_bytes(data[at:at + extra], 'little') + 1
                at += extra
            out += data[at:at + n]
            at += n
            continue
        if tag & 3 == 1:
            n, offset = (tag >> 2 & 7) + 4, tag >> 5 << 8 | data[at]
            at += 1
        else:
            width = 2 if tag & 3 == 2 else 4
            n, offset = (tag >> 2) + 1, int.from_bytes(data[at:at + width], 'little')
            at += width
        for _ in range(n):
            out.append(out[-offset])
    assert len(out) == size
    return bytes(out)


def pack_literals(data):
    """Returns a snappy block of literals only."""
    out = varint(len(data))
    for at in range(0, len(data), 60):
        part = data[at:at + 60]
        out += bytes([len(part) - 1 << 2]) + part
    return out


class TableWriter:
    def __init__(self, compress=False):
        self.out, self.handles, self.compress = b'', [], compress

    def put(self, data, compress=False):
        data = pack_literals(data) if compress else data
        typed = data + bytes([1 if compress else 0])
        handle = varint(len(self.out)) + varint(len(data))
        self.out += typed + struct.pack('<I', mask(crc32c(typed)))
        return handle

    def write(self, entries, per_block):
        groups = [entries[i:i + per_block] for i in range(0, len(entries), per_block)]
        index = [(group[-1][0], self.put(block(group, 16), self.compress)) for group in groups]
        meta = self.put(block([], 1))
        foot = meta + self.put(block(index, 1))
        return self.out + foot.ljust(40, b'\0') + MAGIC


def read_table(data):
    assert data[-8:] == MAGIC
    foot = data[-48:-8]
    _, at = get_varint(foot, 0)
    _, at = get_varint(foot, at)

    def get(offset, size):
        typed = data[offset:offset + size + 1]
        assert struct.unpack_from('<I', data, offset + size + 1)[0] == mask(crc32c(typed))
        return snappy(typed[:-1]) if typed[-1] == 1 else typed[:-1]

    offset, at = get_varint(foot, at)
    size, at = get_varint(foot, at)
    for _, handle in parse_block(get(offset, size)):
        offset, at = get_varint(handle, 0)
        yield from parse_block(get(offset, get_varint(handle, at)[0]))


# ---- keys of slices ----

def key_number(x):
    data = x.to_bytes((x.bit_length() + 7) // 8, 'big')
    return bytes([len(data)]) + data


def key_signed(x):
    n = 1
    while not -(1 << 7 * n - 1) <= x < 1 << 7 * n - 1:
        n += 1
    value = (x & (1 << 8 * n) - 1) ^ ((1 << n) - 1) << 7 * n
    return value.to_bytes(n, 'big')


def slice_key(name, extents):
    text = name.replace(b'\xff', b'\xff\0') + b'\0\1'
    return key_number(0) + text + key_number(len(extents)) + b''.join(key_signed(a) + key_signed(b) for a, b in extents)


# ---- bundles ----

def shape_message(shape):
    return field(2, b''.join(field(2, field(1, n)) for n in shape))


def parse_shape(entry):
    return tuple(first(dim, 1) for number, dim in fields(first(entry, 2, b'')) if number == 2)


def encode_strings(strings):
    lengths = b''.join(struct.pack('<I', len(s)) for s in strings)
    check = struct.pack('<I', mask(crc32c(lengths)))
    data = b''.join(varint(len(s)) for s in strings) + check + b''.join(strings)
    return data, crc32c(b''.join(strings), crc32c(check, crc32c(lengths)))


def decode_strings(data, n):
    at, lengths = 0, []
    for _ in range(n):
        size, at = get_varint(data, at)
        lengths.append(size)
    check = mask(crc32c(b''.join(struct.pack('<I', x) for x in lengths)))
    assert struct.unpack_from('<I', data, at)[0] == check
    at += 4
    out = []
    for size in lengths:
        out.append(data[at:at + size])
        at += size
    assert at == len(data)
    return out


def write(prefix, tensors, files=1, per_block=7, compress=False):
    data, entries = [b''] * files, {}

    def put(key, dtype, shape, values):
        number = len(entries) % files
        text, crc = encode_strings(values) if dtype == STRING else (values, crc32c(values))
        entries[key] = (field(1, dtype) + shape_message(shape) + field(3, number) + field(4, len(data[number])) +
                        field(5, len(text)) + b'\x35' + struct.pack('<I', mask(crc)))
        data[number] += text

    for name, tensor in tensors.items():
        name = name.encode()
        if tensor[0] != 'slices':
            put(name, *tensor)
            continue
        _, dtype, shape, parts = tensor
        listed = b''
        for begin, size, values in parts:
            whole = [(b, n) == (0, dim) for b, n, dim in zip(begin, size, shape)]
            extents = [(0, -1) if w else (b, n) for w, b, n in zip(whole, begin, size)]
            put(slice_key(name, extents), dtype, size, values)
            listed += field(7, b''.join(
                field(1, b'' if n < 0 else field(1, b) + varint(2 << 3) + varint(n)) for b, n in extents))
        entries[name] = field(1, dtype) + shape_message(shape) + listed
    header = [(b'', field(1, files) + field(3, field(1, 1)))]
    for i, text in enumerate(data):
        with open(f'{prefix}.data-{i:05d}-of-{files:05d}', 'wb') as f:
            f.write(text)
    with open(prefix + '.index', 'wb') as f:
        f.write(TableWriter(compress).write(header + sorted(entries.items()), per_block))


def read(prefix):
    with open(prefix + '.index', 'rb') as f:
        entries = dict(read_table(f.read()))
    files = first(entries.pop(b''), 1)
    data, out = {}, {}

    def get(entry):
        number = first(entry, 3)
        if number not in data:
            with open(f'{prefix}.data-{number:05d}-of-{files:05d}', 'rb') as f:
                data[number] = f.read()
        text = data[number][first(entry, 4):first(entry, 4) + first(entry, 5)]
        shape, dtype = parse_shape(entry), first(entry, 1)
        count = n_elements(shape)
        if dtype == STRING:
            values = decode_strings(text, count)
            crc = encode_strings(values)[1]
        else:
            values, crc = text, crc32c(text)
            assert len(text) == count * SIZES[dtype]
        assert first(entry, 6) == mask(crc)
        return values

    for key, entry in entries.items():
        if key[:1] == b'\0':
            continue
        dtype, shape = first(entry, 1), parse_shape(entry)
        listed = [v for n, v in fields(entry) if n == 7]
        if not listed:
            out[key.decode()] = (dtype, shape, get(entry))
            continue
        parts = []
        for text in listed:
            raw = [(first(e, 1), first(e, 2, -1)) for n, e in fields(text) if n == 1]
            extents = [(b, dim if n < 0 else n) for (b, n), dim in zip(raw, shape)]
            part = get(entries[slice_key(key, raw)])
            parts.append((tuple(b for b, _ in extents), tuple(n for _, n in extents), part))
        out[key.decode()] = ('slices', dtype, shape, parts)
    return out


# ---- checkpoints of Cohort: metadata and deltas ----

def metadata(id_number, sizes, step=0, time=0, base_id=0, base='', format_number=1):
    """Returns the message under the key _COHORT."""
    def fixed64(number, *values):
        return varint(number << 3 | 1) + struct.pack('<Q', *values) if any(values) else b''

    return (field(1, format_number) + fixed64(2, id_number) + field(3, time) + field(4, step) +
            field(5, struct.pack(f'<{len(sizes)}Q', *sizes)) + fixed64(6, base_id) + (field(7, base.encode()) if base else b''))


def write_cohort(prefix, tensors, id_number, files=1, **fields_of_metadata):
    """Writes a checkpoint with metadata. Its size does not depend on the sizes of the files."""
    sizes = [0] * files
    for _ in range(2):
        message = metadata(id_number, sizes, **fields_of_metadata)
        write(prefix, {**tensors, '_COHORT': (STRING, (), [message])}, files)
        sizes = [os.path.getsize(f'{prefix}.data-{i:05d}-of-{files:05d}') for i in range(files)]


def n_elements(shape):
    count = 1
    for n in shape:
        count *= n
    return count


def whole(tensor):
    """Returns (dtype, shape, values) of a tensor that may be in slices."""
    if tensor[0] != 'slices':
        return tensor
    _, dtype, shape, parts = tensor
    item = SIZES[dtype]
    out = bytearray(n_elements(shape) * item)
    for begin, size, values in parts:
        # Each element of the slice, in row-major order.
        for i in range(n_elements(size)):
            at, left, stride = 0, i, 1
            for k in reversed(range(len(shape))):
                at += (begin[k] + left % size[k]) * stride
                left //= size[k]
                stride *= shape[k]
            out[at * item:(at + 1) * item] = values[i * item:(i + 1) * item]
    return dtype, shape, bytes(out)


def read_metadata(tensors):
    """Returns (id, id of the base, name of the base) of a checkpoint that was read. The id is 0 if there is no metadata,
    the name is '' if the checkpoint is full."""
    if '_COHORT' not in tensors:
        return 0, 0, ''
    message = tensors['_COHORT'][2][0]
    assert first(message, 1) == 1
    return first(message, 2), first(message, 6), first(message, 7, b'').decode()


def read_whole(prefix):
    """Returns {name: (dtype, shape, values)}. Slices are joined, and a delta is joined with its base."""
    stored = {name: whole(tensor) for name, tensor in read(prefix).items()}
    _, base_id, base_name = read_metadata(stored)
    if base_name == '':
        return stored
    assert '/' not in base_name
    base = {name: whole(tensor) for name, tensor in read(os.path.join(os.path.dirname(prefix), base_name)).items()}
    own_id, _, base_of_base = read_metadata(base)
    assert own_id == base_id and base_of_base == ''
    out = {}
    for name, tensor in stored.items():
        if name.endswith('/.ROWS/ids'):
            key = name[:-len('/.ROWS/ids')]
            dtype, shape, old = base[key]
            n, = tensor[1]
            ids = struct.unpack(f'<{n}q', tensor[2])
            changed_dtype, changed_shape, changed = stored[key + '/.ROWS/values']
            assert tensor[0] == 9 and changed_dtype == dtype and changed_shape == (n, *shape[1:])
            assert list(ids) == sorted(set(ids)) and all(0 <= i < shape[0] for i in ids)
            size = len(old) // shape[0]
            new = bytearray(old)
            for i, row in enumerate(ids):
                new[row * size:(row + 1) * size] = changed[i * size:(i + 1) * size]
            out[key] = (dtype, shape, bytes(new))
        elif not name.endswith('/.ROWS/values'):
            out[name] = tensor
    return out


def rows(name, dtype, row_shape, changed):
    """Returns the tensors of a delta for changed = {row: bytes}."""
    ids = sorted(changed)
    return {name + '/.ROWS/ids': (9, (len(ids),), struct.pack(f'<{len(ids)}q', *ids)),
            name + '/.ROWS/values': (dtype, (len(ids), *row_shape), b''.join(changed[i] for i in ids))}


# ---- seeds ----

def odd_checkpoints(numbers):
    """Returns {name: (options, data, entries)}: checkpoints that a reader must refuse, or that use rare forms."""
    def entry(dtype, shape, size, offset=0, extra=b''):
        return field(1, dtype) + shape_message(shape) + field(4, offset) + field(5, size) + extra

    def listed(*extents):
        return b''.join(field(7, b''.join(field(1, field(1, b) + varint(2 << 3) + varint(n)) for b, n in e)) for e in extents)

    def sliced(stored, shape, *extents, dtype=1):
        """A tensor w that lists `extents`; `stored` are its slices."""
        out = {slice_key(b'w', e): entry(dtype, [n for _, n in e], 4 * n_elements([n for _, n in e])) for e in stored}
        return {**out, b'w': field(1, 1) + shape_message(shape) + listed(*extents)}

    def delta(ids=(9, (2,), 16), values=(1, (2, 2), 16), name=b'w', more=None):
        out = {name + b'/.ROWS/ids': entry(*ids), name + b'/.ROWS/values': entry(*values, offset=16), **(more or {})}
        return {k: v for k, v in out.items() if v != entry(0, (), 0)}

    def strings(n, text, shape=None):
        return text, {b's': entry(STRING, (n,) if shape is None else shape, len(text))}

    good = struct.pack('<2q', 1, 4) + numbers[:16]
    w = {b'w': entry(1, (2, 3), 24)}
    half, rest = ((0, 2),), ((2, 2),)
    none = (0, (), 0)
    out = {'big_endian': (1, numbers, {b'': field(1, 1) + field(2, 1), **w}),
           'no_header': (1, numbers, {b'': b'', **w}),
           'bad_consumers': (1, numbers, {b'': field(1, 1) + field(3, field(3, b'\2\1')), **w}),
           'bad_consumer': (1, numbers, {b'': field(1, 1) + field(3, varint(3 << 3) + b'\1'), **w}),
           'producer': (1, numbers, {b'': field(1, 1) + field(3, field(1, -1)), **w}),
           'negative_axis': (1, numbers, {b'w': field(1, 1) + field(2, field(2, field(1, -1)))}),
           'nine_axes': (1, numbers, {b'w': entry(1, (1,) * 9, 4)}),
           'offset': (1, numbers, {b'w': entry(1, (1,), 4, offset=-1)}),
           'two_files': (1 | 128, numbers, {b'': field(1, 2), **w, b'x': entry(1, (1,), 4, extra=field(3, 1))}),
           'zero_name': (1, numbers, {b'w\0': w[b'w']}),
           'slices_twice': (1, numbers, sliced([half, rest], (4,), half, half)),
           'slices_unlisted': (1, numbers, sliced([half, rest], (4,), half)),
           'slices_unstored': (1, numbers, sliced([half], (4,), half, rest)),
           'slices_part': (1, numbers, sliced([half], (4,), half)),
           'slices_outside': (1, numbers, sliced([half, rest], (3,), half, rest)),
           'slices_overlap': (1, numbers, sliced([half, ((1, 2),)], (4,), half, ((1, 2),))),
           'slices_dtype': (1, numbers, sliced([half, rest], (4,), half, rest, dtype=3)),
           'slices_axes': (1, numbers, sliced([half], (4, 1), half)),
           'slices_extent': (1, numbers, sliced([half], (4,), ((0, -7),))),
           'slices_far': (1, numbers, sliced([((64, 2),), ((9000, 2),)], (9002,), ((64, 2),), ((9000, 2),))),
           'slices_before': (1, numbers, {slice_key(b'a', half): entry(1, (2,), 8), **sliced([half], (2,), half)}),
           'slices_columns': (1, numbers, sliced([((0, 2), (0, 1)), ((0, 2), (1, 2))], (2, 3), ((0, 2), (0, 1)), ((0, 2), (1, 2)))),
           'slice_shape': (1, numbers, {slice_key(b'w', half): entry(1, (3,), 12), b'w': w[b'w']}),
           'slices_of_strings': (1, numbers, {slice_key(b'w', half): entry(STRING, (2,), 8),
                                              b'w': field(1, STRING) + shape_message((2,)) + listed(half)}),
           'delta_ids_dtype': (3, good, delta(ids=(2, (2,), 16))), 'delta_values_dtype': (3, good, delta(values=(3, (2, 2), 16))),
           'delta_count': (3, good, delta(ids=(9, (1,), 8))), 'delta_shape': (3, good, delta(values=(1, (2, 1), 8))),
           'delta_other': (3, good, delta(name=b'x')), 'delta_whole': (3, good, delta(more=w)),
           'delta_no_values': (3, good, delta(values=none)),
           'delta_other_values': (3, good, delta(values=none, more={b'x/.ROWS/values': entry(1, (2, 2), 16)})),
           'delta_order': (3, struct.pack('<2q', 4, 1) + numbers[:16], delta()),
           'delta_empty': (3, good, delta(ids=(9, (0,), 0), values=(1, (0, 2), 0))),
           'delta_of_scalar': (3, good, delta(name=b's')), 'delta_of_other': (3 | 8, good, delta()),
           'delta_of_delta': (3 | 16, good, delta()), 'link': (1 | 32, numbers, w), 'cut': (1 | 64, numbers, w),
           'parts': (1 | 4, numbers, {**{b'%c' % k: entry(1, (2, 3), 24) for k in b'abcdef'}, **sliced([half, rest], (4,), half, rest)}),
           'parts_of_delta': (3 | 4, good, delta(more={b'%c' % k: entry(1, (2,), 8) for k in b'abcxyz'})),
           'metadata_list': (1, numbers, {b'_COHORT': entry(STRING, (2,), 8)})}
    for name, (text, entries) in {'strings_none': strings(0, b''), 'strings_short': strings(2, b'\2'),
                                  'strings_long': strings(1, b'\x7f\0\0\0\0'), 'strings_many': strings(99, b'\0' * 9),
                                  'strings_varint': strings(1, b'\xff' * 11), 'strings_rest': strings(1, encode_strings([b'a'])[0] + b'b')}.items():
        out[name] = (1, text, entries)
    for name, more in {'metadata_files': {'sizes': [1, 2]}, 'metadata_lost': {'base_id': 8, 'base': 'lost'}}.items():
        size = len(encode_strings([metadata(7, **{'sizes': [0], **more})])[0])
        text, crc = encode_strings([metadata(7, **{'sizes': [size], **more})])
        out[name] = (1, text, {b'_COHORT': entry(STRING, (), len(text), extra=b'\x35' + struct.pack('<I', mask(crc)))})
    return out


def restored_graphs():
    """Object graphs of the checkpoint of fuzz/restore.c: of all its objects, and with a value of another object."""
    def value(attribute, key, name=''):
        return field(2, field(1, attribute.encode()) + field(2, name.encode()) + field(3, (key + '/.ATTRIBUTES/' + attribute).encode()))

    def child(node, name):
        return field(1, field(1, node) + field(2, name.encode()))

    def slot(variable, name, node):
        return field(3, field(1, variable) + field(2, name.encode()) + field(3, node))

    names = ('x', 'o', 'f', 'd', 's', 'save_counter')
    root = b''.join(child(i + 1, name) for i, name in enumerate(names))
    optimizer = child(7, 'iterations') + child(8, 'rate') + slot(1, 'm', 9) + slot(1, 'v', 10)
    nodes = [root, value('VARIABLE_VALUE', 'x', 'x'), optimizer, value('RUNS', 'f'), value('POSITION', 'd'), value('STATE', 's'),
             value('VARIABLE_VALUE', 'save_counter'), value('VARIABLE_VALUE', 'o/iterations'), value('VARIABLE_VALUE', 'o/rate'),
             value('VARIABLE_VALUE', 'x/.OPTIMIZER_SLOT/o/m'), value('VARIABLE_VALUE', 'x/.OPTIMIZER_SLOT/o/v')]
    wrong = list(nodes)
    wrong[4] = field(2, field(1, b'POSITION') + field(3, b's/.ATTRIBUTES/STATE'))
    twice = list(nodes)
    twice[0] = root + child(1, 'y')
    half = list(nodes) + [value('VARIABLE_VALUE', 'h', 'h'), value('VARIABLE_VALUE', 'h/.OPTIMIZER_SLOT/o/m'),
                          value('VARIABLE_VALUE', 'h/.OPTIMIZER_SLOT/o/v')]
    half[0] = root + child(11, 'h')
    half[2] = optimizer + slot(11, 'm', 12) + slot(11, 'v', 13)
    sums = list(half)
    sums[2] = half[2] + slot(11, 'sum', 12)
    model = list(nodes) + [value('STEPS', 'm') + child(12, 'dense'), child(13, 'kernel') + child(14, 'bias'),
                           value('VARIABLE_VALUE', 'm/dense/kernel'), value('VARIABLE_VALUE', 'm/dense/bias')]
    model[0] = root + child(11, 'm')
    lost = list(nodes)
    lost[5] = field(2, field(1, b'STATE') + field(3, b'nothing/.ATTRIBUTES/STATE'))
    graphs = {'whole': nodes, 'wrong': wrong, 'twice': twice, 'half': half, 'sums': sums, 'model': model, 'lost': lost}
    return {name: b''.join(field(1, node) for node in graph) for name, graph in graphs.items()}


def write_seeds(corpus):
    def seed(target, name, data):
        os.makedirs(os.path.join(corpus, target), exist_ok=True)
        with open(os.path.join(corpus, target, name), 'wb') as f:
            f.write(data)

    numbers = struct.pack('<6f', *range(6))
    checkpoints = {
        'whole': {'w': (1, (2, 3), numbers), 'b': (9, (), bytes(8))},
        'slices': {'w': ('slices', 1, (2, 3), [((0, 0), (2, 1), numbers[:8]), ((0, 1), (2, 2), numbers[8:])])},
        'strings': {'s': (STRING, (2,), [b'ab', b'']), 'e': (1, (0,), b''), 'c': (8, (1,), bytes(8))},
        'metadata': {'_COHORT': (STRING, (), [metadata(7, [0])])},
        'delta': {**rows('w', 1, (2,), {1: numbers[:8], 4: numbers[8:16]}), 'b': (9, (), bytes(8))}}
    with tempfile.TemporaryDirectory() as folder:
        for name, tensors in checkpoints.items():
            prefix = os.path.join(folder, name)
            for compress in (False, True):
                write(prefix, tensors, 1, 2, compress)
                with open(prefix + '.index', 'rb') as f:
                    index = f.read()
                seed('ckpt_table', name + ('_snappy' if compress else ''), index)
            with open(prefix + '.data-00000-of-00001', 'rb') as f:
                data = f.read()
            entries = b''.join(bytes([len(k), len(v)]) + k + v for k, v in read_table(index))
            seed('ckpt', name, bytes([3 if name == 'delta' else 1, len(data)]) + data + entries)
    for name, (options, data, entries) in odd_checkpoints(numbers).items():
        entries = {b'': field(1, 1) + field(3, field(1, 1)), **entries}
        seed('ckpt', name, bytes([options, len(data)]) + data +
             b''.join(bytes([len(k), len(v)]) + k + v for k, v in entries.items()))
    seed('metadata', 'full', metadata(7, [100, 1 << 40], step=-1, time=1600000000250000))
    seed('metadata', 'delta', metadata(7, [100], step=5, base_id=6, base='ckpt-1') + field(15, b'unknown'))
    seed('metadata', 'newer', field(1, 99))
    seed('metadata', 'outside', metadata(7, [], base_id=6, base='../a'))
    seed('state_file', 'two', b'model_checkpoint_path: "ckpt-2"\nall_model_checkpoint_paths: "ckpt-1"\n'
                              b'all_model_checkpoint_paths: "ckpt-2"\nall_model_checkpoint_timestamps: 1.5e9\n'
                              b'all_model_checkpoint_timestamps: 1600000000.25\nlast_preserved_timestamp: -1\n')
    seed('state_file', 'escapes', b"model_checkpoint_path : '/dir/a\\x41\\101\\n\\\\' ; # text\n")
    seed('state_file', 'outside', b'model_checkpoint_path: "../a"\n')
    node = field(1, field(1, 1) + field(2, b'a')) + field(5, b'')
    leaf = field(2, field(1, b'VARIABLE_VALUE') + field(2, b'w') + field(3, b'a/.ATTRIBUTES/VARIABLE_VALUE'))
    slot = field(3, field(1, 1) + field(2, b'm') + field(3, 0)) + field(4, field(1, b'x'))
    names = b''.join(field(1, field(2, name)) for name in (b'a.b/c', b'..', b'.S', b'.x', b'a/b'))
    seed('object_graph', 'escapes', field(1, names))
    seed('object_graph', 'three', b''.join(field(1, x) for x in (node, leaf, slot)))
    for name, graph in restored_graphs().items():
        seed('restore', name, bytes([0]) + struct.pack('<q', 5) + graph)
    for i, name in enumerate(('f64', 'complex', 'no_staging', 'state', 'keeps')): # options of fuzz/restore.c
        seed('restore', name, bytes([8 << i]) + struct.pack('<q', 5) + restored_graphs()['whole'])
    seed('restore', 'half_no_staging', bytes([32]) + bytes(8) + restored_graphs()['half'])
    for shape in (2, 3, 4, 5):
        seed('restore', f'shape_{shape}', bytes([shape]) + bytes(8) + field(1, b''))
    seed('restore', 'count', bytes([0]) + b'\xff' * 8 + restored_graphs()['whole'])


if __name__ == '__main__':
    if sys.argv[1:2] != ['--seeds']:
        sys.exit('bundle.py --seeds DIRECTORY')
    write_seeds(sys.argv[2])
