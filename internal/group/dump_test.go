package group

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Dump is all that values hold, also what they point to, as a text that is the same for the same content.
func Dump(list ...any) string {
	var b strings.Builder
	for _, x := range list {
		dump(&b, reflect.ValueOf(x))
	}
	return b.String()
}

func dump(b *strings.Builder, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			b.WriteByte('-')
		} else {
			dump(b, v.Elem())
		}
	case reflect.Struct:
		b.WriteByte('{')
		for i := range v.NumField() {
			if v.Type() == reflect.TypeFor[time.Time]() && i == 2 { // the location
				break
			}
			dump(b, v.Field(i))
			b.WriteByte(' ')
		}
		b.WriteByte('}')
	case reflect.Map:
		var list []string
		for k, x := range v.Seq2() {
			var pair strings.Builder
			dump(&pair, k)
			pair.WriteByte(':')
			dump(&pair, x)
			list = append(list, pair.String())
		}
		slices.Sort(list)
		fmt.Fprint(b, list)
	case reflect.Slice, reflect.Array:
		b.WriteByte('[')
		for i := range v.Len() {
			dump(b, v.Index(i))
			b.WriteByte(' ')
		}
		b.WriteByte(']')
	case reflect.Func, reflect.Chan, reflect.UnsafePointer:
	default:
		fmt.Fprint(b, v)
	}
}
