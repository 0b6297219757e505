package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/httpapi/gen"
	"github.com/microvmd/microvm/internal/image"
)

// ListImages is GET /v1/images.
func (s *server) ListImages(ctx context.Context, _ gen.ListImagesRequestObject) (gen.ListImagesResponseObject, error) {
	images, err := s.Images.Images(ctx)
	if err != nil {
		return nil, err
	}
	list := gen.ListImages200JSONResponse{
		Object: gen.ListObjectList, URL: "/v1/images",
		Data: make([]gen.Image, 0, len(images)),
	}
	for _, one := range images {
		list.Data = append(list.Data, wireImage(one))
	}
	return list, nil
}

// ImportImage is POST /v1/images.
func (s *server) ImportImage(ctx context.Context, r gen.ImportImageRequestObject) (gen.ImportImageResponseObject, error) {
	env, err := parseEnv(r.Params.Env)
	if err != nil {
		return nil, err
	}
	brought, err := s.Images.Import(ctx, image.Spec{
		ID: r.Params.Name, User: value(r.Params.User), Workdir: value(r.Params.Workdir), Env: env,
		Language: value(r.Params.Language), LanguageVersion: value(r.Params.LanguageVersion), Replace: value(r.Params.Replace),
	}, r.Body)
	if err != nil {
		return nil, err
	}
	if !brought.New {
		return gen.ImportImage200JSONResponse(wireImage(brought.Image)), nil
	}
	return gen.ImportImage201JSONResponse(wireImage(brought.Image)), nil
}

// parseEnv reads an environment from a query. What is twice in it would leave one
// of the two out.
func parseEnv(text *string) (map[string]string, error) {
	if text == nil {
		return nil, nil
	}
	env := map[string]string{}
	decoder := json.NewDecoder(bytes.NewReader([]byte(*text)))
	err := each(decoder, func(name string) error {
		if _, twice := env[name]; twice {
			return fmt.Errorf("a name is there twice")
		}
		var value *string
		if err := decoder.Decode(&value); err != nil || value == nil {
			return errors.New("a value is no string")
		}
		env[name] = *value
		return nil
	})
	if err != nil {
		bad := fault.Wrap(err, fault.ParameterInvalid, "env must be the text of one JSON object whose values are strings, each name once")
		bad.Param = "env"
		return nil, bad
	}
	return env, nil
}

// each reads one object, and hands each of its names to do, which reads the value.
func each(decoder *json.Decoder, do func(name string) error) error {
	if first, err := decoder.Token(); err != nil || first != json.Delim('{') {
		return errors.New("it is no object")
	}
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return err
		}
		text, ok := name.(string)
		if !ok {
			return errors.New("a name is no string")
		}
		if err := do(text); err != nil {
			return err
		}
	}
	if _, err := decoder.Token(); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows it")
	}
	return nil
}

// DeleteImage is DELETE /v1/images/{image}.
func (s *server) DeleteImage(ctx context.Context, r gen.DeleteImageRequestObject) (gen.DeleteImageResponseObject, error) {
	removed, err := s.Images.Remove(ctx, r.Image)
	if err != nil {
		return nil, err
	}
	return gen.DeleteImage200JSONResponse(wireImage(removed)), nil
}

func wireImage(one image.Image) gen.Image {
	source := gen.ImageSourceBuilt
	if one.Source == image.Imported {
		source = gen.ImageSourceImported
	}
	return gen.Image{
		ID:              one.ID,
		Object:          gen.ImageObjectImage,
		Language:        orNil(one.Language),
		LanguageVersion: orNil(one.LanguageVersion),
		Arch:            one.Arch,
		SizeBytes:       one.SizeBytes,
		Digest:          one.Digest,
		Workdir:         one.Workdir,
		User:            one.User,
		Source:          source,
	}
}
