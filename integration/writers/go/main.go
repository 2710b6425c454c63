// Writes Parquet files with iceberg-go: jobs are lines of JSON on standard input, answers lines on standard output.
//
// Each job names rows (an Arrow stream), an output and the metadata of the Iceberg table for which it is written.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	iceio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"
)

type job struct {
	Rows     string `json:"rows"`
	Out      string `json:"out"`
	Metadata string `json:"metadata"`
}

func records(reader *ipc.Reader) iter.Seq2[arrow.RecordBatch, error] {
	return func(yield func(arrow.RecordBatch, error) bool) {
		for reader.Next() {
			batch := reader.RecordBatch()
			batch.Retain() // WriteRecords releases it
			if !yield(batch, nil) {
				return
			}
		}
		if err := reader.Err(); err != nil {
			yield(nil, err)
		}
	}
}

func write(each job) (err error) {
	defer func() {
		if found := recover(); found != nil {
			err = fmt.Errorf("panic: %v", found)
		}
	}()
	source, err := os.Open(each.Rows)
	if err != nil {
		return err
	}
	defer source.Close()
	reader, err := ipc.NewReader(source)
	if err != nil {
		return err
	}
	defer reader.Release()
	metadata, err := table.ParseMetadataBytes([]byte(each.Metadata))
	if err != nil {
		return err
	}
	files := func(context.Context) (iceio.IO, error) { return iceio.LocalFS{}, nil }
	target := table.New(table.Identifier{"db", "t"}, metadata, "", files, nil)
	var paths []string
	for file, err := range table.WriteRecords(context.Background(), target, reader.Schema(), records(reader)) {
		if err != nil {
			return err
		}
		paths = append(paths, strings.TrimPrefix(file.FilePath(), "file://"))
	}
	if len(paths) != 1 {
		return fmt.Errorf("%d files instead of one", len(paths))
	}
	if err := os.Rename(paths[0], each.Out); err != nil {
		return err
	}
	return os.RemoveAll(filepath.Dir(filepath.Dir(paths[0])))
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var each job
		answer := map[string]string{}
		err := json.Unmarshal(lines.Bytes(), &each)
		if err == nil {
			err = write(each)
		}
		answer["out"] = each.Out
		if err != nil {
			answer["error"] = err.Error()
		}
		answers.Encode(answer)
	}
}
