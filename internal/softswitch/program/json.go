package program

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Limits of the JSON text, far above p4c's output.
const (
	maxJSON   = 64 << 20 // bytes
	maxValues = 2 << 20  // values of any kind
	maxDepth  = 2000     // nesting of objects and arrays
)

// object is a JSON object with its members in order.
type object struct {
	names   []string
	members map[string]any
}

// parseJSON returns data as a tree of nil, bool, json.Number, string, []any and *object. Unlike
// json.Unmarshal it rejects an object with a duplicate member, because one of the two would be
// ignored.
func parseJSON(data []byte) (any, error) {
	if len(data) > maxJSON {
		return nil, fmt.Errorf("%d bytes, more than %d", len(data), maxJSON)
	}
	r := reader{dec: json.NewDecoder(bytes.NewReader(data)), left: maxValues}
	r.dec.UseNumber()
	v, err := r.value(0)
	if err == nil {
		err = r.end()
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, fmt.Errorf("byte %d: %w", r.dec.InputOffset(), err)
	}
	return v, nil
}

type reader struct {
	dec  *json.Decoder
	left int // number of values still allowed
}

func (r *reader) end() error {
	_, err := r.dec.Token()
	if err == io.EOF {
		return nil
	}
	if err == nil {
		err = errors.New("more text after the JSON object")
	}
	return err
}

func (r *reader) value(depth int) (any, error) {
	tok, err := r.dec.Token()
	if err != nil {
		return nil, err
	}
	if r.left--; r.left < 0 {
		return nil, fmt.Errorf("more than %d values", maxValues)
	}
	delim, ok := tok.(json.Delim)
	if !ok {
		return tok, nil
	}
	if depth == maxDepth {
		return nil, fmt.Errorf("more than %d objects and arrays inside each other", maxDepth)
	}
	if delim == '[' {
		return r.array(depth + 1)
	}
	return r.object(depth + 1)
}

func (r *reader) array(depth int) (any, error) {
	list := []any{}
	for r.dec.More() {
		v, err := r.value(depth)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	_, err := r.dec.Token() // the closing bracket
	return list, err
}

func (r *reader) object(depth int) (any, error) {
	o := &object{members: map[string]any{}}
	for r.dec.More() {
		key, err := r.dec.Token()
		if err != nil {
			return nil, err
		}
		name, ok := key.(string)
		if !ok {
			return nil, fmt.Errorf("member name %v is not a string", key)
		}
		if _, ok := o.members[name]; ok {
			return nil, fmt.Errorf("member %s occurs twice in an object", quote(name))
		}
		v, err := r.value(depth)
		if err != nil {
			return nil, err
		}
		o.names = append(o.names, name)
		o.members[name] = v
	}
	_, err := r.dec.Token() // the closing brace
	return o, err
}
