package cli

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/mcrdma/mcrdma/internal/cmdline"
)

// Clean removes characters that control a terminal from a text, and makes it one line.
func Clean(s string) string { return oneLine.Replace(cmdline.Clean(s)) }

var oneLine = strings.NewReplacer("\n", " ", "\t", " ")

// CleanMessage cleans all texts of a message.
func CleanMessage(m proto.Message) { clean(m.ProtoReflect()) }

func clean(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		text, message := f.Kind() == protoreflect.StringKind, f.Message() != nil
		switch {
		case f.IsMap(): // there are none in api/
		case f.IsList() && message:
			for i := range v.List().Len() {
				clean(v.List().Get(i).Message())
			}
		case f.IsList() && text:
			for i := range v.List().Len() {
				v.List().Set(i, protoreflect.ValueOfString(Clean(v.List().Get(i).String())))
			}
		case message:
			clean(v.Message())
		case text:
			m.Set(f, protoreflect.ValueOfString(Clean(v.String())))
		}
		return true
	})
}
