package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/mcrdma/mcrdma/internal/cmdline"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// Formats of all commands with --output.
const (
	FormatText = "text"
	FormatJSON = "json"
)

// An Output is the output format of a command: the flag --output. Results go to standard output in
// that format; errors and notes go to standard error, errors as JSON if the format is JSON.
type Output struct {
	format  string
	formats []string // possible formats; the first is the default
}

// AddOutputFlag adds --output to a command. more are formats in addition to text and json.
func AddOutputFlag(cmd *cobra.Command, more ...string) *Output {
	o := &Output{format: FormatText, formats: append([]string{FormatText, FormatJSON}, more...)}
	cmd.Flags().VarP(o, "output", "o", "`format` of the result: "+Enumeration(o.formats)+"; with json an error is JSON too, on standard error")
	cmd.Flags().BoolFunc("json", "the same as --output json", func(s string) error {
		on, err := strconv.ParseBool(s)
		if err != nil {
			return fmt.Errorf("%q is neither true nor false", s)
		}
		o.format = Either(on, FormatJSON, FormatText)
		return nil
	})
	CompleteFlag(cmd, "output", func() []string { return o.formats })
	return o
}

// Format returns the chosen format.
func (o *Output) Format() string { return o.format }

// String implements pflag.Value.
func (o *Output) String() string { return o.format }

// Type implements pflag.Value.
func (o *Output) Type() string { return "format" }

// Set implements pflag.Value.
func (o *Output) Set(s string) error {
	if !slices.Contains(o.formats, s) {
		return fmt.Errorf("formats are %s", Enumeration(o.formats))
	}
	o.format = s
	return nil
}

// IsJSON reports whether the format is JSON.
func (o *Output) IsJSON() bool { return o.format == FormatJSON }

// JSON writes a value as indented JSON, in any format.
func (o *Output) JSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// MessageJSON is a message as JSON with the names of its definition, and with only these fields;
// none: all.
func MessageJSON(m proto.Message, fields ...string) (json.RawMessage, error) {
	raw, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m)
	if err != nil || len(fields) == 0 {
		return raw, err
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, err
	}
	maps.DeleteFunc(all, func(name string, _ json.RawMessage) bool { return !slices.Contains(fields, name) })
	return json.Marshal(all)
}

// Message writes a message as JSON, in any format.
func (o *Output) Message(w io.Writer, m proto.Message) error {
	raw, err := MessageJSON(m)
	if err != nil {
		return err
	}
	return o.JSON(w, raw)
}

// A Table is a header and its rows.
type Table struct {
	Header []string
	Rows   [][]any
}

// Tables returns the tables that have rows, each after an empty line.
func Tables(list ...Table) string {
	var b strings.Builder
	for _, t := range list {
		if len(t.Rows) > 0 {
			fmt.Fprintf(&b, "\n%v", t)
		}
	}
	return b.String()
}

// Table writes columns under a header, in any format; see [Table.String].
func (o *Output) Table(w io.Writer, header []string, rows [][]any) error {
	_, err := fmt.Fprint(w, Table{header, rows})
	return err
}

// String returns columns under a header, and a newline. Columns of numbers (and perhaps empty
// strings) are aligned to the right. Without rows it is only the header.
func (t Table) String() string {
	w := table.NewWriter()
	w.SetStyle(table.Style{
		Box:    table.BoxStyle{MiddleVertical: "  "},
		Format: table.FormatOptions{Header: text.FormatDefault},
		Options: table.Options{
			DoNotColorBordersAndSeparators: true, SeparateColumns: true,
		},
	})
	w.SuppressTrailingSpaces()
	var head table.Row
	var columns []table.ColumnConfig
	for i, h := range t.Header {
		if !strings.Contains(h, "[") { // units are unchanged: Gb is not GB
			h = strings.ToUpper(h)
		}
		head = append(head, h)
		if numeric(t.Rows, i) {
			columns = append(columns, table.ColumnConfig{Number: i + 1, Align: text.AlignRight, AlignHeader: text.AlignRight})
		}
	}
	w.SetColumnConfigs(columns)
	w.AppendHeader(head)
	for _, r := range t.Rows {
		w.AppendRow(table.Row(r))
	}
	return w.Render() + "\n"
}

// numeric reports whether a column has a number, and no text.
func numeric(rows [][]any, column int) bool {
	found := false
	for _, r := range rows {
		if column >= len(r) || r[column] == "" {
			continue
		}
		switch r[column].(type) {
		case int, int32, int64, uint, uint8, uint16, uint32, uint64, float64:
			found = true
		default:
			return false
		}
	}
	return found
}

// CompleteFlag completes a flag's value from a list.
func CompleteFlag(cmd *cobra.Command, flag string, values func() []string) {
	complete(cmd, flag, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return values(), cobra.ShellCompDirectiveNoFileComp
	})
}

func complete(cmd *cobra.Command, flag string, by cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, by); err != nil {
		panic(err) // the flag does not exist, or already has a completion: a bug
	}
}

// CompleteList completes the last of a flag's comma-separated values.
func CompleteList(cmd *cobra.Command, flag string, values func() []string) {
	complete(cmd, flag, func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		before := typed[:strings.LastIndexByte(typed, ',')+1]
		var out []string
		for _, v := range values() {
			if !slices.Contains(strings.Split(before, ","), v) {
				out = append(out, before+v)
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	})
}

// CompleteFile completes a flag's value by files with these extensions.
func CompleteFile(cmd *cobra.Command, flag string, endings ...string) {
	if err := cmd.MarkFlagFilename(flag, endings...); err != nil {
		panic(err)
	}
}

// Enumeration returns "a, b or c".
func Enumeration(list []string) string { return join(list, " or ") }

// All returns "a, b and c".
func All(list []string) string { return join(list, " and ") }

func join(list []string, last string) string {
	if len(list) < 2 {
		return strings.Join(list, "")
	}
	return strings.Join(list[:len(list)-1], ", ") + last + list[len(list)-1]
}

// NoArgs refuses arguments, with a usage error.
func NoArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return cmdline.Usagef("unexpected argument %q: this command takes flags only", args[0])
	}
	return nil
}

// ExactArg requires one argument; what describes it.
func ExactArg(what string) cobra.PositionalArgs { return ExactArgs(what) }

// ExactArgs requires one argument for each of these.
func ExactArgs(what ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != len(what) {
			return cmdline.Usagef("%s: name %s", Plural(len(args), "argument"), All(what))
		}
		return nil
	}
}

// SocketEnv is the environment variable for --socket; applications use it too.
const SocketEnv = "MCRDMA_SOCKET"

// AddSocketFlag adds --socket, which names a daemon's socket.
func AddSocketFlag(cmd *cobra.Command, socket *string, short string) {
	cmd.Flags().StringVarP(socket, "socket", short, "", "the daemon's unix socket, a `file`; default: $"+SocketEnv+", else "+mcrdma.DefaultSocket)
	CompleteFile(cmd, "socket", "sock")
}

// Socket returns the socket to use.
func Socket(flag string) string { return cmp.Or(flag, os.Getenv(SocketEnv), mcrdma.DefaultSocket) }
