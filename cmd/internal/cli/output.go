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

// Formats that every command with an --output has.
const (
	FormatText = "text"
	FormatJSON = "json"
)

// An Output is how a command shows its result: the flag --output. Results go to
// standard output, in one of the formats; errors and notes go to standard error, errors in JSON
// if the format is that.
type Output struct {
	format  string
	formats []string // that there are; the first is the default
}

// AddOutputFlag adds --output to a command. more are formats beyond text and json.
func AddOutputFlag(cmd *cobra.Command, more ...string) *Output {
	o := &Output{format: FormatText, formats: append([]string{FormatText, FormatJSON}, more...)}
	cmd.Flags().VarP(o, "output", "o", "`format` of the result: "+Enumeration(o.formats)+"; with json an error is JSON too, on standard error")
	cmd.Flags().Var(jsonFlag{o}, "json", "the same as --output json")
	cmd.Flags().Lookup("json").NoOptDefVal = "true"
	CompleteFlag(cmd, "output", func() []string { return o.formats })
	return o
}

// Format is the one that was chosen.
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

// jsonFlag is --json.
type jsonFlag struct{ o *Output }

func (f jsonFlag) String() string   { return "" }
func (f jsonFlag) Type() string     { return "bool" }
func (f jsonFlag) IsBoolFlag() bool { return true }

func (f jsonFlag) Set(s string) error {
	on, err := strconv.ParseBool(s)
	if err != nil {
		return fmt.Errorf("%q is neither true nor false", s)
	}
	if f.o.format = FormatText; on {
		f.o.format = FormatJSON
	}
	return nil
}

// IsJSON says whether the result is wanted as JSON.
func (o *Output) IsJSON() bool { return o.format == FormatJSON }

// JSON writes a value as indented JSON, whatever the format.
func (o *Output) JSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// MessageJSON is a message with the names of its definition; fields are those that it has, none: all.
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

// Message writes a message as JSON, whatever the format.
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

// Tables writes those that have rows, each after an empty line.
func (o *Output) Tables(w io.Writer, list ...Table) error {
	for _, t := range list {
		if len(t.Rows) == 0 {
			continue
		}
		if _, err := fmt.Fprintln(w); err != nil {
			return err
		}
		if err := o.Table(w, t.Header, t.Rows); err != nil {
			return err
		}
	}
	return nil
}

// Table writes columns under a header, whatever the format. Columns that hold
// numbers (and perhaps empty strings) are aligned to the right. Without rows only
// the header is written.
func (o *Output) Table(w io.Writer, header []string, rows [][]any) error {
	t := table.NewWriter()
	t.SetStyle(table.Style{
		Box:    table.BoxStyle{MiddleVertical: "  "},
		Format: table.FormatOptions{Header: text.FormatDefault},
		Options: table.Options{
			DoNotColorBordersAndSeparators: true, SeparateColumns: true,
		},
	})
	t.SuppressTrailingSpaces()
	var head table.Row
	var columns []table.ColumnConfig
	for i, h := range header {
		if !strings.Contains(h, "[") { // units stay as they are: Gb is not GB
			h = strings.ToUpper(h)
		}
		head = append(head, h)
		if numeric(rows, i) {
			columns = append(columns, table.ColumnConfig{Number: i + 1, Align: text.AlignRight, AlignHeader: text.AlignRight})
		}
	}
	t.SetColumnConfigs(columns)
	t.AppendHeader(head)
	for _, r := range rows {
		t.AppendRow(table.Row(r))
	}
	_, err := fmt.Fprintln(w, t.Render())
	return err
}

// numeric says whether a column holds a number, and no text.
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
	err := cmd.RegisterFlagCompletionFunc(flag, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return values(), cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // the flag does not exist, or has a completion: a mistake in this program
	}
}

// CompleteList completes the last of a flag's values, which have commas between.
func CompleteList(cmd *cobra.Command, flag string, values func() []string) {
	err := cmd.RegisterFlagCompletionFunc(flag, func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		before := typed[:strings.LastIndexByte(typed, ',')+1]
		var out []string
		for _, v := range values() {
			if !slices.Contains(strings.Split(before, ","), v) {
				out = append(out, before+v)
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	})
	if err != nil {
		panic(err) // likewise
	}
}

// CompleteFile completes a flag's value by files with these endings.
func CompleteFile(cmd *cobra.Command, flag string, endings ...string) {
	if err := cmd.MarkFlagFilename(flag, endings...); err != nil {
		panic(err)
	}
}

// Enumeration is "a, b or c".
func Enumeration(list []string) string { return join(list, " or ") }

// All is "a, b and c".
func All(list []string) string { return join(list, " and ") }

func join(list []string, last string) string {
	if len(list) < 2 {
		return strings.Join(list, "")
	}
	return strings.Join(list[:len(list)-1], ", ") + last + list[len(list)-1]
}

// NoArgs refuses arguments, as a usage error.
func NoArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return cmdline.Usagef("unexpected argument %q: this command takes flags only", args[0])
	}
	return nil
}

// ExactArg wants one argument; what says which.
func ExactArg(what string) cobra.PositionalArgs { return ExactArgs(what) }

// ExactArgs wants one argument for each of these.
func ExactArgs(what ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != len(what) {
			return cmdline.Usagef("%s: name %s", Plural(len(args), "argument"), All(what))
		}
		return nil
	}
}

// SocketEnv is the environment variable that --socket is taken from; applications take
// theirs from it too.
const SocketEnv = "MCRDMA_SOCKET"

// AddSocketFlag adds --socket, which names a daemon's socket.
func AddSocketFlag(cmd *cobra.Command, socket *string, short string) {
	cmd.Flags().StringVarP(socket, "socket", short, "", "the daemon's unix socket, a `file`; default: $"+SocketEnv+", else "+mcrdma.DefaultSocket)
	CompleteFile(cmd, "socket", "sock")
}

// Socket is the socket to be used.
func Socket(flag string) string { return cmp.Or(flag, os.Getenv(SocketEnv), mcrdma.DefaultSocket) }
