package httpapi

import (
	"bytes"
	"context"

	"github.com/microvmd/microvm/api"
	"github.com/microvmd/microvm/internal/httpapi/gen"
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
		list.Data = append(list.Data, gen.Image{
			ID:              one.ID,
			Object:          gen.ImageObjectImage,
			Language:        orNil(one.Language),
			LanguageVersion: orNil(one.LanguageVersion),
			Arch:            one.Arch,
			SizeBytes:       one.SizeBytes,
			Digest:          one.Digest,
			Workdir:         one.Workdir,
			User:            one.User,
		})
	}
	return list, nil
}

// GetHealth is GET /v1/health.
func (s *server) GetHealth(context.Context, gen.GetHealthRequestObject) (gen.GetHealthResponseObject, error) {
	return gen.GetHealth200JSONResponse{Object: gen.HealthObjectHealth, OK: true, Version: s.Version}, nil
}

// GetSpecification is GET /v1/openapi.yaml.
func (s *server) GetSpecification(context.Context, gen.GetSpecificationRequestObject) (gen.GetSpecificationResponseObject, error) {
	return gen.GetSpecification200ApplicationYamlResponse{SpecificationApplicationYamlResponse: specification()}, nil
}

// GetRootSpecification is GET /openapi.yaml.
func (s *server) GetRootSpecification(context.Context, gen.GetRootSpecificationRequestObject) (gen.GetRootSpecificationResponseObject, error) {
	return gen.GetRootSpecification200ApplicationYamlResponse{SpecificationApplicationYamlResponse: specification()}, nil
}

func specification() gen.SpecificationApplicationYamlResponse {
	return gen.SpecificationApplicationYamlResponse{
		Body: bytes.NewReader(api.Specification), ContentLength: int64(len(api.Specification)),
	}
}
